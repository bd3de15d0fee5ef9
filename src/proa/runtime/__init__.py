"""Runs the roles in threads (`local`) or actors (`ray`), with the same supervisor of the makers."""
