//! The gateway as a black box: the real program between hostile or ordinary clients and real or broken upstreams.

mod applications;
mod bad_upstreams;
mod corpus;
mod corpus_reader;
mod front;
mod gateway_process;
mod grpc;
mod hang_ups;
mod http2_abuse;
mod http2_clients;
mod http2_corpus;
mod http2_wire;
mod llm_budgets;
mod load;
mod mutations;
mod restarts;
mod spellings;
mod streams;
mod upstream_timeouts;
mod websocket_clients;
mod websocket_limits;
mod websocket_load;
mod websocket_wire;
mod wire_client;
