"""The HTTP surface, one module per group of calls; each gives its routes for one Service."""
