//! A source of choices, made from bytes. After the last byte every choice is the first, so that a shorter
//! input is a simpler case.

use std::time::Duration;

use tollgate::time::MAX_EXACT;
use tollgate::{Algorithm, Align, Limit, LimitBuilder, Micros, OnChange};

pub(crate) struct FuzzSource<'a>(&'a [u8]);

impl<'a> FuzzSource<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> FuzzSource<'a> {
        FuzzSource(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns true once in `many` times; never after the last byte.
    pub(crate) fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == many - 1
    }

    /// All bytes that are left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(crate) fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    /// Any number at all, often a small one or one at an edge.
    pub(crate) fn number(&mut self) -> u64 {
        match self.below(8) {
            0..=2 => u64::from(self.byte() % 16),
            3 => u64::from(self.byte()) * u64::from(self.byte()),
            4 => self.word() >> (self.byte() % 64),
            5 => {
                let edges = [0, 1_000_000, 3_600_000_000, 1 << 32, 1 << 52, MAX_EXACT, u64::MAX];
                let step = u64::from(self.byte() % 3);
                edges[self.below(edges.len())].saturating_add(step).saturating_sub(1)
            }
            6 => 10u64.pow(u32::from(self.byte() % 20)),
            _ => self.word(),
        }
    }

    pub(crate) fn instant(&mut self) -> Micros {
        Micros::new(self.number())
    }

    /// A limit with any numbers, valid or not.
    pub(crate) fn builder(&mut self) -> LimitBuilder {
        let period = Duration::from_micros(self.number().saturating_add(1));
        let mut builder = Limit::per(self.number(), period);
        let algorithm = Algorithm::ALL[self.below(Algorithm::ALL.len())];
        builder = builder.algorithm(algorithm);
        let flags = self.byte();
        match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                if flags & 1 == 1 {
                    builder = builder.burst(self.number());
                }
                if flags & 2 == 2 {
                    builder = builder.queue();
                }
            }
            Algorithm::FixedWindow => match flags % 3 {
                0 => {}
                1 => builder = builder.align(Align::FirstHit),
                _ => builder = builder.align(Align::Anchor(self.instant())),
            },
            Algorithm::SlidingWindowCounter if flags & 1 == 1 => {
                builder = builder.buckets(1 + u32::from(self.byte()) * 4);
            }
            _ => {}
        }
        builder.on_change(match flags >> 6 {
            0 | 1 => OnChange::Keep,
            2 => OnChange::Reset,
            _ => OnChange::Scale,
        })
    }
}
