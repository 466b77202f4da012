"""The only packages that touch devices."""
