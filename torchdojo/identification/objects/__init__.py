"""Two objects as a user writes them, each in a file of its own: a cube (`cube`) and a hinged pair of links (`elbow`)."""
