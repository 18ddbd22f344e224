"""Stories about a cluster, told on a `World`, written down in a `History`, judged by a `Checker`."""
