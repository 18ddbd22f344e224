"""Stories about a cluster: told on a `World`, kept in a `History`, judged by a `Checker`."""
