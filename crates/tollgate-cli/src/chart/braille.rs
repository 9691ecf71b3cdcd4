//! Lines in braille: each character has two by four dots.

/// Dots of one character, by row and column.
const DOTS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

/// An area of braille characters.
pub(super) struct BrailleArea {
    columns: usize,
    /// One byte of dots for each character. Bound: columns times lines of a strip.
    cells: Vec<u8>,
}

impl BrailleArea {
    pub(super) fn new(columns: usize, lines: usize) -> BrailleArea {
        BrailleArea { columns, cells: vec![0; columns * lines] }
    }

    /// Draws a straight line between two dots, counted from the left and from the top.
    pub(super) fn line(&mut self, from: (u64, u64), to: (u64, u64)) {
        let (x0, y0, x1, y1) = (signed(from.0), signed(from.1), signed(to.0), signed(to.1));
        let steps = (x1 - x0).abs().max((y1 - y0).abs()).max(1);
        for step in 0..=steps {
            // Rounded to the nearest dot; all numbers are small.
            let along = |a: i64, b: i64| (2 * (b - a) * step + steps).div_euclid(2 * steps) + a;
            self.dot(along(x0, x1), along(y0, y1));
        }
    }

    fn dot(&mut self, x: i64, y: i64) {
        let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) else { return };
        if x / 2 < self.columns
            && let Some(cell) = self.cells.get_mut(y / 4 * self.columns + x / 2)
        {
            *cell |= DOTS[y % 4][x % 2];
        }
    }

    /// The character at a place; `None` if it has no dots.
    pub(super) fn character(&self, column: usize, line: usize) -> Option<char> {
        let dots = *self.cells.get(line * self.columns + column)?;
        (dots != 0).then(|| char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' '))
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX / 4)
}
