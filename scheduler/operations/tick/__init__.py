"""One tick (scheduling cycle): load the view, plan, commit the decisions, publish the changes."""
