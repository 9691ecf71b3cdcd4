//! The queues of the library on a virtual clock: random sequences beside a model that looks at
//! everything in each step, and traffic whose fairness is measured.

mod departure_line;
mod fair_queue;
mod fairness;
mod naive_fair_queue;
