"""Writers that compose a conversation for an agent CLI: plan in, bytes out. No storage, no I/O."""
