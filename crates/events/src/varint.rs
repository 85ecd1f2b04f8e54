//! LEB128 integers, zigzag for signed ones.

/// Appends an integer.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends integers.
pub(crate) fn put_all<const N: usize>(out: &mut Vec<u8>, values: [u64; N]) {
    values.into_iter().for_each(|value| put(out, value));
}

/// Appends a signed integer.
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Appends an optional integer.
pub(crate) fn put_optional(out: &mut Vec<u8>, value: Option<u32>) {
    put(out, value.map_or(0, |value| u64::from(value) + 1));
}

/// Appends at most `max` bytes of text, with their number.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str, max: usize) {
    let text = &text[..text.floor_char_boundary(max)];
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Takes integers from the start of a slice. `None` at its end, and for malformed integers.
#[derive(Debug, Clone)]
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Option<u64> {
        let first = self.byte()?;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        let mut value = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            // The tenth byte has one bit.
            if shift == 63 && byte > 1 {
                return None;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        let value = self.u64()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.u64()?.try_into().ok()
    }

    pub(crate) fn optional(&mut self) -> Option<Option<u32>> {
        match self.u64()? {
            0 => Some(None),
            value => Some(Some(u32::try_from(value - 1).ok()?)),
        }
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let length = self.u64()?.try_into().ok()?;
        let bytes = self.bytes(length)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn integers_round_trip(values in proptest::collection::vec(any::<u64>(), 0..20), shift in 0..64u32) {
            let mut out = Vec::new();
            for value in &values {
                put(&mut out, value >> shift);
                put_signed(&mut out, *value as i64 >> shift);
            }
            let mut decoder = Decoder(&out);
            for value in &values {
                prop_assert_eq!(decoder.u64(), Some(value >> shift));
                prop_assert_eq!(decoder.i64(), Some(*value as i64 >> shift));
            }
            prop_assert_eq!(decoder.byte(), None);
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut decoder = Decoder(&bytes);
            while decoder.u64().is_some() {}
            Decoder(&bytes).text();
        }
    }

    #[test]
    fn integers_beyond_64_bits_are_malformed() {
        assert_eq!(
            Decoder(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).u64(),
            Some(u64::MAX)
        );
        assert_eq!(Decoder(&[0xff; 10]).u64(), None);
        assert_eq!(Decoder(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2]).u64(), None);
    }
}
