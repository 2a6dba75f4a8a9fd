"""Weights and arithmetic: one decoder for training and sampling; knows neither HTTP nor SQL."""
