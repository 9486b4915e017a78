"""Apache TVM: its default pipeline, or kernels that MetaSchedule searches for by measuring."""
