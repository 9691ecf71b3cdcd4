//! For every instant at which an interval may begin: what was spent since. A tree of maxima, so
//! that one more call, which counts for every beginning before it, costs log n.

/// Below every sum: a beginning that no call had yet.
const CLOSED: i128 = -(1 << 120);

/// Bound: one leaf for each admitted call of a history.
pub(super) struct IntervalStarts {
    /// The instants, sorted, each once.
    at_us: Vec<u64>,
    /// Heap order: children of n are 2n and 2n + 1; a node holds the greatest of its leaves …
    most: Vec<i128>,
    /// … of which this much is owed to all of them together.
    added_to_subtree: Vec<i128>,
    open: Vec<bool>,
}

impl IntervalStarts {
    /// None of them open.
    pub(super) fn of(instants_us: impl Iterator<Item = u64>) -> IntervalStarts {
        let mut at_us: Vec<u64> = instants_us.collect();
        at_us.sort_unstable();
        at_us.dedup();
        let nodes = 2 * at_us.len().next_power_of_two();
        let open = vec![false; at_us.len()];
        IntervalStarts { at_us, most: vec![CLOSED; nodes], added_to_subtree: vec![0; nodes], open }
    }

    /// From now on an interval may begin here; it counts `handicap` beside what was spent since.
    pub(super) fn open(&mut self, at_us: u64, handicap: i128) {
        let leaf = self.leaf(at_us);
        if !std::mem::replace(&mut self.open[leaf], true) {
            self.add(leaf, leaf + 1, handicap - CLOSED);
        }
    }

    /// Counts for every interval that begins here or before.
    pub(super) fn spend(&mut self, at_us: u64, amount: i128) {
        self.add(0, self.leaf(at_us) + 1, amount);
    }

    /// The most of all open beginnings, and which one it is.
    pub(super) fn most(&self) -> (i128, u64) {
        let mut node = 1;
        while node < self.most.len() / 2 {
            node *= 2;
            node += usize::from(self.most[node + 1] > self.most[node]);
        }
        (self.most[1], self.at_us[node - self.most.len() / 2])
    }

    fn leaf(&self, at_us: u64) -> usize {
        self.at_us.binary_search(&at_us).expect("a call of this history")
    }

    /// Adds to the leaves `from..to`, from the root down.
    fn add(&mut self, from: usize, to: usize, amount: i128) {
        self.add_below(1, (0, self.most.len() / 2), (from, to), amount);
    }

    fn add_below(&mut self, node: usize, own: (usize, usize), to: (usize, usize), amount: i128) {
        if to.1 <= own.0 || own.1 <= to.0 {
            return;
        }
        if to.0 <= own.0 && own.1 <= to.1 {
            self.most[node] += amount;
            self.added_to_subtree[node] += amount;
            return;
        }
        let middle = own.0.midpoint(own.1);
        self.add_below(2 * node, (own.0, middle), to, amount);
        self.add_below(2 * node + 1, (middle, own.1), to, amount);
        self.most[node] =
            self.most[2 * node].max(self.most[2 * node + 1]) + self.added_to_subtree[node];
    }
}
