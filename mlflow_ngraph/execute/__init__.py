"""Running a study: the plan, the child processes, their supervisor, and the journal."""
