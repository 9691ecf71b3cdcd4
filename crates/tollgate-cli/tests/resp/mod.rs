//! The resp listener from outside: the real program, asked by redis-cli, redis-py, ioredis and over plain
//! sockets.

mod access;
mod bounds;
mod clients;
mod commands;
mod resp_client;
mod rule_checks;
mod shared_store;
mod throttle;
