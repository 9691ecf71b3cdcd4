//! The read buffer of a connection: bytes that have arrived and are not parsed yet, in one piece.

use super::request::COMMAND_BYTES_MAX;

/// Size of the buffer of an idle connection.
const IDLE_BYTES: usize = 4 << 10;

/// Size up to which it grows for longer reads. Only a longer command makes it larger.
const READ_BYTES_MAX: usize = 64 << 10;

/// The buffer. Bound: [`COMMAND_BYTES_MAX`], the length of the longest command.
#[derive(Debug, Default)]
pub(super) struct InputBuffer {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
    /// The last read filled the buffer.
    was_filled: bool,
}

impl InputBuffer {
    /// Bytes that are not parsed yet.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// All bytes up to the end of the last read, and the offset of the unread ones.
    #[inline]
    pub(super) fn bytes_and_offset(&self) -> (&[u8], usize) {
        (&self.bytes[..self.end], self.begin)
    }

    #[inline]
    pub(super) fn consume(&mut self, bytes: usize) {
        self.begin += bytes;
    }

    /// Free space for the next read. Moves the unread bytes to the front, so offsets into
    /// [`InputBuffer::bytes_and_offset`] become invalid.
    pub(super) fn free_space(&mut self) -> &mut [u8] {
        if self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        let length = self.bytes.len();
        let wanted = match self.end == length || self.was_filled {
            true if self.end == length => (4 * length).clamp(IDLE_BYTES, COMMAND_BYTES_MAX),
            true => (4 * length).min(READ_BYTES_MAX),
            false => length,
        };
        if wanted > length {
            self.bytes.resize(wanted, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Marks bytes of the free space as read.
    pub(super) fn fill(&mut self, bytes: usize) {
        self.end += bytes;
        self.was_filled = self.end == self.bytes.len();
    }

    /// Returns true if it holds more memory than an idle connection needs.
    pub(super) fn is_large(&self) -> bool {
        self.bytes.len() > IDLE_BYTES
    }

    /// Frees the memory, if nothing is unread.
    pub(super) fn shrink(&mut self) {
        if self.begin == self.end {
            *self = InputBuffer::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: &mut InputBuffer, bytes: usize) -> usize {
        let room = input.free_space();
        let bytes = bytes.min(room.len());
        room[..bytes].fill(b'x');
        input.fill(bytes);
        bytes
    }

    #[test]
    fn it_grows_as_far_as_a_command_can_and_shrinks_when_idle() {
        let mut input = InputBuffer::default();
        assert_eq!(read(&mut input, 10), 10);
        assert_eq!((input.bytes.len(), input.is_large()), (IDLE_BYTES, false));
        input.consume(4);
        assert_eq!(input.unread(), b"xxxxxx");
        // One long command, in as many reads as it takes.
        while read(&mut input, usize::MAX) > 0 {
            assert!(input.bytes.len() <= COMMAND_BYTES_MAX);
        }
        assert_eq!(input.unread().len(), COMMAND_BYTES_MAX);
        input.shrink();
        assert_eq!(input.unread().len(), COMMAND_BYTES_MAX, "nothing unread is lost");
        input.consume(COMMAND_BYTES_MAX);
        input.shrink();
        assert_eq!(input.bytes.capacity(), 0);
    }

    #[test]
    fn many_short_commands_make_reads_longer_but_not_beyond_their_bound() {
        let mut input = InputBuffer::default();
        for _ in 0..20 {
            let bytes = read(&mut input, usize::MAX);
            assert!(bytes > 0);
            input.consume(bytes - 1);
        }
        assert_eq!(input.bytes.len(), READ_BYTES_MAX);
    }
}
