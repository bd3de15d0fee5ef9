"""What trainers and makers have in common as actors: what they are doing, what they wait for, when they stop, how they
are found.
"""
