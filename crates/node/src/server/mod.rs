//! The Unix socket that client processes and the command line talk to.
