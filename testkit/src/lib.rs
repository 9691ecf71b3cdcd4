//! What tests of several crates share: real Redis processes, a proxy that injects faults, and a
//! checker of histories.
