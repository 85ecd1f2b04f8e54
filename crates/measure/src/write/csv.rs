//! CSV: one record per size and buffer mode, per rate of the node roofline, and per pair of ranks.

use std::fmt::Display;

use regatta_model::bench::PairEndpoint;
use regatta_model::{BenchResult, RankRoofline};

use crate::buffer_mode::BufferMode;

/// The columns of collectives, in order.
pub const HEADER: &str = "label,program,backend,ranks,nodes,operation,type,redop,root,size_bytes,\
                          count,place,time_us,algbw_gb_s,busbw_gb_s,wrong,error,iterations,min_us,\
                          p50_us,p90_us,p95_us,p99_us,max_us,cv_percent";

/// The columns of node rooflines.
const ROOFLINES: &str =
    "label,rank,host,benchmark,case,device,unit,median,best,time_us,repetitions";

/// The columns of pairs.
const PAIRS: &str =
    "label,from_rank,from_host,to_rank,to_host,bandwidth_gb_s,latency_us,latency_median_us";

/// All results. Collectives, rooflines and pairs have different columns: a blank line and a header
/// separate them.
pub fn csv(results: &[BenchResult]) -> String {
    let section = |header: &str, records: fn(&BenchResult) -> Vec<Vec<String>>| {
        let line = |cells: Vec<String>| cells.iter().map(quoted).collect::<Vec<_>>().join(",");
        let lines: Vec<String> = results.iter().flat_map(records).map(line).collect();
        (!lines.is_empty()).then(|| format!("{header}\n{}\n", lines.join("\n")))
    };
    let all = [section(HEADER, collectives), section(ROOFLINES, rooflines), section(PAIRS, pairs)];
    let sections: Vec<String> = all.into_iter().flatten().collect();
    if sections.is_empty() { format!("{HEADER}\n") } else { sections.join("\n") }
}

fn collectives(result: &BenchResult) -> Vec<Vec<String>> {
    let mut records = Vec::new();
    let rows = result.tables.iter().flat_map(|t| t.rows.iter().map(move |row| (t, row)));
    for (table, row) in rows {
        for place in BufferMode::ALL {
            let Some(measured) = place.measurement(row) else { continue };
            let (label, program) = (result.label.clone(), result.program.to_string());
            let mut record = vec![label, program, known(&result.backend)];
            record.extend([result.shape.ranks, result.shape.nodes].map(|count| known(&count)));
            record.extend([table.operation.to_string(), known(&table.dtype), known(&table.redop)]);
            record.extend([known(&table.root), row.size_bytes.to_string(), known(&row.count)]);
            record.push(place.to_string());
            record.extend([measured.time_us, measured.algbw, measured.busbw].map(|v| known(&v)));
            let (error, iterations) = (known(&measured.error), known(&measured.iterations));
            record.extend([known(&measured.wrong), error, iterations]);
            let calls = measured.call_stats.clone().unwrap_or_default();
            let low = [calls.min_us, calls.p50_us, calls.p90_us];
            let high = [calls.p95_us, calls.p99_us, calls.max_us, calls.cv_percent];
            record.extend(low.iter().chain(&high).map(known));
            records.push(record);
        }
    }
    records
}

fn rooflines(result: &BenchResult) -> Vec<Vec<String>> {
    let record = |RankRoofline { rank, host, row }: &RankRoofline| {
        let (label, kind) = (result.label.clone(), row.kind.to_string());
        let mut record = vec![label, rank.to_string(), host.clone(), kind, row.case.clone()];
        record.extend([row.device.clone(), row.unit.to_string()]);
        record.extend([row.median, row.best, row.time_us].map(|value| value.to_string()));
        record.push(row.repetitions.to_string());
        record
    };
    result.roofline.iter().map(record).collect()
}

fn pairs(result: &BenchResult) -> Vec<Vec<String>> {
    let Some(pairs) = &result.pairs else { return Vec::new() };
    let ends = || pairs.endpoints.iter().enumerate();
    let record = |((i, from), (j, to)): ((usize, &PairEndpoint), (usize, &PairEndpoint))| {
        let matrices = [&pairs.bandwidth, &pairs.latency_us, &pairs.latency_median_us];
        let values = matrices.map(|matrix| *matrix.get(i)?.get(j)?);
        let ends = [from, to].map(|end| [end.rank.to_string(), end.host.clone()]).concat();
        let measured = values.iter().any(Option::is_some).then(|| values.map(|v| known(&v)));
        measured.map(|measured| [vec![result.label.clone()], ends, measured.to_vec()].concat())
    };
    ends().flat_map(|from| ends().map(move |to| (from, to))).filter_map(record).collect()
}

fn known(value: &Option<impl Display>) -> String {
    value.as_ref().map(ToString::to_string).unwrap_or_default()
}

/// Quotes a cell if necessary.
pub fn quoted(cell: impl AsRef<str>) -> String {
    let cell = cell.as_ref();
    if !cell.contains([',', '"', '\n', '\r']) {
        return cell.to_owned();
    }
    format!("\"{}\"", cell.replace('"', "\"\""))
}
