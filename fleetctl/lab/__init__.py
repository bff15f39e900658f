"""Boxes on this machine to work and test on: real systemd, sshd and HAProxy, each with its own addresses."""
