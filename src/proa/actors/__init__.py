"""What trainers and makers share as actors: activity, waits with deadlines, stop requests, finding one another."""
