"""Child processes of our own that run users' functions: started, asked over a socket, killed with all they started."""
