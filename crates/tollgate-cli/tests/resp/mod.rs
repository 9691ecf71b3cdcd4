//! End-to-end tests of the resp listener: the real program with redis-cli, redis-py, ioredis and plain sockets as
//! clients.

mod access;
mod bounds;
mod clients;
mod commands;
mod resp_client;
mod rule_checks;
mod shared_store;
mod throttle;
