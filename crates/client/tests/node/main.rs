//! Tests of the client library with a real node and its server in this process: what a user may do
//! by the socket is what he may do on the parallel file system, and nobody gets another's bytes.

mod abandoned;
mod entries;
mod loads;
mod locate;
mod place;
mod rebinding;
mod reuse;
mod rights;
mod traced;
