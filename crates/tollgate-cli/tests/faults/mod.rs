//! Faults of a shared store, each under load, against the real server and a real Redis.
//!
//! Every test runs a server with rules of all three policies, lets callers ask it all the time, breaks
//! something after two seconds and mends it two seconds later. Whatever is broken: nobody gets an error,
//! everybody gets an answer in time, the answers say who decided, bounds are kept, and after the repair
//! the store decides again within two seconds. `TOLLGATE_FAULT_SECONDS=10` makes each phase longer.
//!
//! They measure time, so nothing else may run beside them: `.config/nextest.toml` sees to that.

mod load;
mod many_nodes;
mod one_node;
mod restarts;
