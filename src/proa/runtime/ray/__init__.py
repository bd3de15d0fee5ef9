"""The runtime `ray`: the same roles as named actors, on one machine or on many. Nothing else imports ray."""
