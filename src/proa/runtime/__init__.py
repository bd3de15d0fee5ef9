"""Where the roles run: `local` puts them into threads of one process."""
