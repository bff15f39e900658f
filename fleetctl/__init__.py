"""fleetctl: moves a small fleet of bare-metal GPU boxes between layouts, and back."""

__version__ = "0.1.0"
