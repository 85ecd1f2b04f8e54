//! AttentionShape, of whole sequences, of parts and of one token, and the positions of its queries and
//! keys.

use super::*;

const ATTENTIONS: [[usize; 5]; 13] = [
    [1, 1, 1, 1, 1],
    [2, 1, 2, 1, 16],
    [3, 5, 2, 2, 6],
    [1, 16, 4, 2, 8],
    [2, 17, 3, 1, 16],
    [1, 48, 2, 2, 32],
    [2, 49, 2, 2, 32],
    [1, 64, 4, 4, 64],
    [1, 103, 4, 2, 20],
    [1, 150, 2, 1, 48],
    [1, 17, 2, 1, 64],
    [2, 64, 3, 3, 24],
    [1, 100, 4, 2, 40],
];

fn attention_of([batch, sequence, heads, kv_heads, head_dim]: [usize; 5]) -> AttentionShape {
    AttentionShape { batch, sequence, heads, kv_heads, head_dim }
}

/// Nothing dropped, what one rank drops, and what a rank with some of the heads and tokens drops.
fn drops(of: AttentionShape) -> [Option<AttentionDropout>; 3] {
    let mask = DropoutMask { share: 0.3, key: key(5, &[1]), first: 1000 };
    let larger = AttentionDropout::whole(mask, 3 * of.heads, of.sequence + 9);
    let whole = AttentionDropout::whole(mask, of.heads, of.sequence);
    [None, Some(whole), Some(larger.from([0, of.heads, 9, 0]))]
}

#[test]
fn attention() {
    for of in ATTENTIONS.map(attention_of) {
        let (inside, outside) = (of.rows() * of.qkv_width(), of.rows() * of.width());
        let sums = of.rows() * of.heads;
        for drop in drops(of) {
            let what = format!("{of:?} {drop:?}");
            same(&what, &[Act(inside), Act(outside), Real(sums)], |device, t| {
                let [qkv, y, lse] = t else { panic!() };
                device.attention(of, qkv.view(), drop, y.view_mut(), lse.view_mut());
                0.0
            });
            let kinds = [Act(inside), Act(outside), Real(sums), Act(outside), Act(inside)];
            same(&what, &kinds, |device, t| {
                let [qkv, y, lse, dy, dqkv] = t else { panic!() };
                device.attention(of, qkv.view(), drop, y.view_mut(), lse.view_mut());
                let (y, lse) = (y.view(), lse.view());
                let saved = AttentionSaved { qkv: qkv.view(), y, lse };
                device.attention_back(of, saved, drop, dy.view(), dqkv.view_mut());
                0.0
            });
        }
    }
}

/// What comes out, and all gradients, as bits.
fn attended(device: &Cpu, of: AttentionShape, drop: Option<AttentionDropout>) -> Vec<Vec<u32>> {
    let (inside, outside) = (of.rows() * of.qkv_width(), of.rows() * of.width());
    let sums = Real(of.rows() * of.heads);
    let mut all = tensors(device, &[Act(inside), Act(outside), sums, Act(outside), Act(inside)]);
    let [qkv, y, lse, dy, dqkv] = &mut all[..] else { panic!() };
    device.attention(of, qkv.view(), drop, y.view_mut(), lse.view_mut());
    let saved = AttentionSaved { qkv: qkv.view(), y: y.view(), lse: lse.view() };
    device.attention_back(of, saved, drop, dy.view(), dqkv.view_mut());
    let bits = |numbers: Vec<f32>| numbers.iter().map(|x| x.to_bits()).collect();
    fetched(device, &all).into_iter().map(bits).collect()
}

#[test]
fn attention_is_the_same_on_any_number_of_threads() {
    let of = attention_of([2, 100, 6, 3, 40]);
    for drop in drops(of) {
        let mut all: Vec<(String, Vec<Vec<u32>>)> = Vec::new();
        for device in devices() {
            let how = device.describe();
            let kernels = how.split_once(", ").unwrap().1.to_owned();
            let found = attended(&device, of, drop);
            match all.iter().find(|(others, _)| *others == kernels) {
                Some((_, expected)) => assert!(*expected == found, "{how} differs"),
                None => all.push((kernels, found)),
            }
        }
        assert!(all.len() < devices().len());
    }
}

#[test]
fn attention_of_one_token() {
    for [_, tokens, heads, kv_heads, head_dim] in ATTENTIONS {
        let of = AttentionShape { batch: 1, sequence: 1, heads, kv_heads, head_dim };
        let cache = tokens * kv_heads * head_dim;
        let kinds = [Act(of.width()), Act(cache), Act(cache), Act(of.width())];
        same(&format!("{of:?}"), &kinds, |device, t| {
            let [q, keys, values, y] = t else { panic!() };
            device.attend(of, q.view(), keys.view(), values.view(), y.view_mut());
            0.0
        });
    }
}

#[test]
fn rope() {
    for of in ATTENTIONS.map(attention_of).into_iter().filter(|of| of.head_dim % 2 == 0) {
        let scattered = super::tokens::tokens(4, of.sequence, 300);
        let in_order: Vec<u32> = (0..of.sequence as u32).collect();
        let all = [(&in_order, RopeDirection::There), (&scattered, RopeDirection::There), (&scattered, RopeDirection::Back)];
        for (places, turn) in all {
            let what = format!("{of:?} {places:?} {turn:?}");
            same(&what, &[Act(of.rows() * of.qkv_width())], |device, t| {
                device.rope(of, 10_000.0, places, turn, t[0].view_mut());
                0.0
            });
        }
    }
}

/// Batch, queries, keys, heads, heads of keys, width of a head.
const PARTS: [[usize; 6]; 9] = [
    [1, 1, 1, 1, 1, 1],
    [2, 3, 5, 2, 1, 6],
    [1, 5, 3, 4, 2, 16],
    [2, 16, 48, 2, 2, 32],
    [1, 50, 17, 3, 1, 20],
    [1, 17, 50, 2, 2, 64],
    [2, 49, 49, 4, 2, 16],
    [1, 103, 103, 2, 1, 8],
    [1, 150, 64, 2, 1, 48],
];

/// What is there already is kept; where there is nothing yet, what lies there does not count.
#[test]
fn attention_of_parts() {
    for [batch, queries, keys, heads, kv_heads, head_dim] in PARTS {
        for causal in [false, true] {
            let of = AttentionChunkShape { batch, queries, keys, heads, kv_heads, head_dim, causal };
            let mask = DropoutMask { share: 0.3, key: key(5, &[1]), first: 1000 };
            let drop = AttentionDropout::whole(mask, heads, 300).from([0, 0, 64, 32]);
            for drop in [None, Some(drop)] {
                merged_and_back(of, drop);
            }
        }
    }
}

fn merged_and_back(of: AttentionChunkShape, drop: Option<AttentionDropout>) {
    let (outside, inside) = (of.rows() * of.width(), of.kv_rows() * of.kv_width());
    let (q, kv, sums) = (Act(outside), Act(inside), Real(of.rows() * of.heads));
    let what = format!("{of:?} {drop:?}");
    same(&what, &[q, kv, Real(outside), sums], |device, t| {
        let [q, kv, y, lse] = t else { panic!() };
        device.attention_part(of, q.view(), kv.view(), drop, y.view_mut(), lse.view_mut());
        0.0
    });
    let kinds = [q, kv, Real(outside), sums, Act(outside), Real(outside), Real(inside)];
    same(&what, &kinds, |device, t| {
        let [q, kv, y, lse, dy, dq, dkv] = t else { panic!() };
        device.fill(f64::NEG_INFINITY, lse.view_mut());
        device.fill(f64::NAN, y.view_mut());
        device.attention_part(of, q.view(), kv.view(), drop, y.view_mut(), lse.view_mut());
        let (q, kv) = (q.view(), kv.view());
        let saved = AttentionChunkSaved { q, kv, y: y.view(), lse: lse.view() };
        let (dq, dkv) = (dq.view_mut(), dkv.view_mut());
        device.attention_part_back(of, saved, drop, dy.view(), dq, dkv);
        0.0
    });
}
