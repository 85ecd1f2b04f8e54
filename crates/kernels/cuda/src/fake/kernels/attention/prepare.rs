//! `attention_prepare.cu`.

use regatta_comm::DType;

use super::super::super::launch::Launch;
use super::dot;

pub(super) fn run(launch: &Launch<'_>) {
    launch.assert_one_dimension();
    let mut args = launch.args();
    let [y, dy, lse, scaled_lse, delta] = [(); 5].map(|()| args.ptr());
    let count = args.size();
    let [queries, padded_queries, heads] = [(); 3].map(|()| args.size32());
    let [head_dim, vector] = ["HEAD_DIM", "VECTOR"].map(|name| launch.define(name));
    let lanes = head_dim.div_ceil(vector).next_power_of_two().min(32);
    let rows = count / padded_queries * queries;
    let y = launch.array(y, launch.dtype("Y_BF16"), rows * head_dim);
    let dy = launch.array(dy, launch.dtype("DY_BF16"), rows * head_dim);
    let lse = launch.array(lse, DType::F32, rows);
    let scaled_lse = launch.array(scaled_lse, DType::F32, count);
    let delta = launch.array(delta, DType::F32, count);
    for at in 0..count.min(launch.blocks[0] * launch.threads / lanes) {
        let (head_of_all, query) = (at / padded_queries, at % padded_queries);
        if query >= queries {
            delta.set(at, 0.0);
            scaled_lse.set(at, f32::INFINITY);
            continue;
        }
        let row = head_of_all / heads * queries + query;
        let row_head = row * heads + head_of_all % heads;
        let of_row = |array: super::Array| array.row(row_head * head_dim, head_dim, vector);
        delta.set(at, dot(&of_row(y), &of_row(dy)));
        let by_row = launch.define("BY_ROW") == 1;
        let lse_at = if by_row { row_head } else { head_of_all * queries + query };
        scaled_lse.set(at, lse.get(lse_at) * std::f32::consts::LOG2_E);
    }
}
