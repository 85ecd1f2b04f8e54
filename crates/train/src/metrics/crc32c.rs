//! CRC-32C and the mask of TFRecords.

/// The polynomial, bit-reversed.
const CASTAGNOLI: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ CASTAGNOLI } else { sum >> 1 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
};

/// CRC-32C of some bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let add = |sum: u32, byte: &u8| (sum >> 8) ^ TABLE[usize::from(sum as u8 ^ byte)];
    !bytes.iter().fold(!0, add)
}

/// CRC-32C masked as in TFRecords, because a CRC of data that contains CRCs is weak.
pub fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_matches_the_standard_check_values() {
        // The check value of CRC-32C, and two of RFC 3720, B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }
}
