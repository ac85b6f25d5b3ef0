"""What mechanisms are made of: bodies, joints, contacts, couplings, and the actuators that drive them."""
