"""The senses of a mechanism: sites on bodies, and a table of sensor kinds that are read from states and steps."""
