//! A set of page numbers with fast access to its smallest member.

/// One bit for each page, and the index of a word before which no bit is set.
#[derive(Debug)]
pub(crate) struct PageSet {
    /// The bits. Bound: one bit for each page there may be.
    words: Box<[u64]>,
    lowest: usize,
}

impl PageSet {
    /// An empty set of numbers below `pages`.
    pub(crate) fn new(pages: usize) -> PageSet {
        PageSet { words: vec![0; pages.div_ceil(64)].into(), lowest: 0 }
    }

    pub(crate) fn insert(&mut self, page: usize) {
        self.words[page / 64] |= 1 << (page % 64);
        self.lowest = self.lowest.min(page / 64);
    }

    pub(crate) fn remove(&mut self, page: usize) {
        self.words[page / 64] &= !(1 << (page % 64));
    }

    /// The smallest number.
    pub(crate) fn first(&mut self) -> Option<usize> {
        while self.lowest < self.words.len() && self.words[self.lowest] == 0 {
            self.lowest += 1;
        }
        let word = self.words.get(self.lowest)?;
        Some(self.lowest * 64 + word.trailing_zeros() as usize)
    }

    #[cfg(test)]
    pub(crate) fn contains(&self, page: usize) -> bool {
        self.words[page / 64] >> (page % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_comes_first() {
        let mut set = PageSet::new(200);
        assert_eq!(set.first(), None);
        for page in [199, 64, 130, 3] {
            set.insert(page);
            set.insert(page);
        }
        for page in [3, 64, 130, 199] {
            assert_eq!((set.first(), set.contains(page)), (Some(page), true));
            set.remove(page);
        }
        assert_eq!(set.first(), None);
        set.insert(70);
        set.insert(5);
        assert_eq!(set.first(), Some(5));
        assert_eq!(PageSet::new(0).first(), None);
    }
}
