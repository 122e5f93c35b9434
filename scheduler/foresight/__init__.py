"""Forecasts: when waiting reservations will start.

The way of one reservation: `present` counts the view by class, `play` plays these counts forward many times, and
`forecaster` makes intervals of the starts, with margins that it learns from the outcomes (`margins`).
"""
