"""Where the roles run: in threads (`local`) or in actors (`ray`), with one supervisor of the makers for both."""
