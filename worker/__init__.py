"""The worker: claims builds, runs engines as subprocesses, stores what they make.

Also the ``qbserver`` command and the embedded launcher, which start everything on one machine.
"""
