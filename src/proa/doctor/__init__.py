"""`proa doctor`: what is installed here, what works and how fast, and what that means for a run.

packages.py   what is installed, and what each package is for
trials.py     what a child process tries: the trainer, the device, each engine
patient.py    the children, one after the other, each within its deadline
advice.py     from what was found to what to set
"""
