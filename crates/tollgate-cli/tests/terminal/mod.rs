//! Commands that draw on a terminal, in one: `top` and the progress bar of `bench`.

mod bench;
mod tmux;
mod top;
