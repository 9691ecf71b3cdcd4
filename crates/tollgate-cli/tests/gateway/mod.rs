//! The gateway as a black box: the real program between hostile or ordinary clients and real or broken upstreams.

mod applications;
mod bad_upstreams;
mod corpus;
mod corpus_reader;
mod gateway_process;
mod hang_ups;
mod streams;
mod wire_client;
