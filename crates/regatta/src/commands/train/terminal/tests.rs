use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use regatta_draw::screenshot;
use regatta_train::metrics::{EndReason, GpuMemory, RunInfo, StepMetrics, StepSeconds, Summary};

use super::*;

/// A shared in-memory writer.
#[derive(Clone, Default)]
struct Buffer(Rc<RefCell<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Buffer {
    fn take(&self) -> String {
        String::from_utf8(self.0.take()).unwrap()
    }
}

fn begin() -> Event {
    Event::Start(Box::new(RunInfo {
        model: "tiny".to_owned(),
        parameters: 804_096,
        ranks: 2,
        hosts: 1,
        threads: 4,
        precision: "f32".to_owned(),
        kernels: "avx512".to_owned(),
        data: "tinyshakespeare".to_owned(),
        data_tokens: 1_203_000,
        steps: 600,
        log_interval: 100,
        gemm_flops_per_second: 76.48e9,
        estimated_seconds: 57.3,
        folder: "runs/1".to_owned(),
        ..Default::default()
    }))
}

fn step(step: u64) -> Event {
    let seconds = StepSeconds {
        step: 0.1,
        data: 0.002,
        forward: 0.03,
        backward: 0.055,
        communication: 0.003,
        optimizer: 0.01,
        ..Default::default()
    };
    Event::Step(Box::new(StepMetrics {
        step,
        steps: 600,
        loss: 4.0 / (1.0 + step as f64 / 60.0),
        lr: 9.1e-4,
        grad_norm: 0.52,
        tokens_per_second: 121_034.0,
        flops_per_second: 38.24e9,
        seconds,
        time: step as f64 / 10.0,
        ..Default::default()
    }))
}

fn end() -> Event {
    Event::End(Box::new(Summary {
        step: 600,
        loss: 1.5,
        val_loss: Some(1.6),
        seconds: 58.2,
        tokens_per_second: 121_034.0,
        flops_per_second: 38.24e9,
        gemm_flops_per_second: 76.48e9,
        folder: "runs/1".to_owned(),
        checkpoint: Some(600),
        ..Default::default()
    }))
}

fn history(steps: u64) -> RunHistory {
    let mut history = RunHistory::default();
    history.on_event(&begin(), 0.0);
    for n in 1..=steps {
        history.on_event(&step(n), n as f64 / 10.0);
        if n % 100 == 0 {
            let loss = 5.0 / (1.0 + n as f64 / 60.0);
            history.on_event(&Event::Validation { step: n, loss }, 0.0);
        }
    }
    history
}

fn render(history: &RunHistory, width: usize, height: usize, now: f64) -> Vec<String> {
    let lines = dashboard::render(history, TerminalSize { width, height }, now);
    lines.iter().map(|line| line.render(false)).collect()
}

#[test]
fn memory_is_shown_if_the_device_is_a_gpu() {
    let mut history = history(1);
    assert!(!log::step_line(&history, 1.0).contains("memory"));
    let Event::Step(mut metrics) = step(2) else { unreachable!("an event of a step") };
    metrics.gpu_memory = Some(GpuMemory { peak: 3 << 29, total: 140 << 30 });
    history.on_event(&Event::Step(metrics), 0.2);
    let shown = "1.5 GiB of 140.0 GiB memory";
    assert!(log::step_line(&history, 1.0).contains(shown));
    assert!(render(&history, 100, 24, 1.0).iter().any(|line| line.contains(shown)));
}

#[test]
fn dashboard_shows_all_sections_wraps_if_narrow_and_keeps_metrics_and_plot_if_small() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/commands/train/terminal");
    for (width, height) in [(80, 24), (40, 24), (40, 12)] {
        let shown = render(&history(300), width, height, 30.0).join("\n") + "\n";
        let file = format!("{folder}/frame-{width}x{height}.txt");
        if std::env::var_os("REGATTA_BLESS").is_some() {
            std::fs::write(&file, &shown).unwrap();
        }
        let expected = std::fs::read_to_string(&file).unwrap();
        assert_eq!(shown, expected, "{width}x{height} (REGATTA_BLESS=1 updates it):\n{shown}");
    }
}

#[test]
fn dashboard_layout_does_not_depend_on_the_number_of_digits() {
    let label_columns = |scale: f64| {
        let mut history = history(99);
        for n in 100..150 {
            let Event::Step(mut step) = step(n) else { panic!() };
            step.tokens_per_second *= scale;
            step.flops_per_second *= scale;
            step.seconds.data *= scale;
            history.on_event(&Event::Step(step), n as f64 / 10.0);
        }
        let columns = |line: String| ["grad norm", "lr", "data"].map(|label| line.find(label));
        render(&history, 80, 24, 30.0).into_iter().map(columns).collect::<Vec<_>>()
    };
    for scale in [0.01, 0.1, 3.3, 7.0] {
        assert_eq!(label_columns(scale), label_columns(1.0), "{scale}");
    }
}

#[test]
fn dashboard_never_exceeds_the_terminal() {
    for steps in [0, 1, 2, 300, 600] {
        let history = history(steps);
        for width in [1, 2, 15, 20, 39, 40, 41, 80, 200] {
            for height in [1, 2, 5, 9, 10, 12, 24, 60] {
                let lines = render(&history, width, height, 30.0);
                assert!(lines.len() < height.max(2), "{width}x{height}: {}", lines.len());
                let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
                assert!(widest < width, "{width}x{height}: {widest}");
            }
        }
    }
}

#[test]
fn dashboard_uses_the_width_of_the_terminal_and_is_a_line_in_a_narrow_one() {
    let wide = render(&history(600), 200, 24, 60.0);
    let widest = |part: &str| {
        let widths = wide.iter().filter(|line| line.contains(part)).map(|l| l.chars().count());
        widths.max().unwrap()
    };
    assert!(widest("step 600/600") > 180 && widest("/step") == 199 && widest("┬") == 199);
    let narrow = |width| render(&history(300), width, 24, 30.0);
    assert_eq!(narrow(39), ["step 300/600  50%  eta 30 s  loss 0.6…"]);
    assert_eq!(narrow(15), ["step 300/600…"]);
}

#[test]
fn escape_sequences_in_names_are_sanitized() {
    let mut history = history(3);
    history.about.model = "\x1b[2Jevil\u{202e}".to_owned();
    history.about.folder = "a\nb".to_owned();
    let lines = render(&history, 80, 24, 1.0);
    assert!(lines.iter().all(|line| !line.contains(['\x1b', '\n', '\u{202e}'])), "{lines:?}");
    assert!(!log::sample("x\x1b[31my").contains("\x1b[31m"));
}

/// An output to a buffer, and the terminal size it sees; `None` in the background.
fn output(mode: OutputMode) -> (TerminalOutput<Buffer>, Buffer, Arc<Mutex<Option<TerminalSize>>>) {
    let buffer = Buffer::default();
    let size = Arc::new(Mutex::new(Some(DEFAULT_SIZE)));
    let current = size.clone();
    let get_size = Box::new(move || *current.lock().unwrap());
    (TerminalOutput::new(mode, buffer.clone(), get_size), buffer, size)
}

#[test]
fn dashboard_is_redrawn_in_place_at_most_ten_times_per_second() {
    let (mut output, buffer, size) = output(OutputMode::Dashboard { colour: false });
    output.on_event(&begin(), 0.0);
    let first = buffer.take();
    let rows = first.matches("\r\n").count();
    assert!(first.starts_with("\x1b[?25l") && first.ends_with("\x1b[J\x1b[?25h"), "{first:?}");
    output.on_event(&step(1), 0.05);
    output.refresh(0.09);
    assert_eq!(buffer.take(), "");
    output.on_event(&step(2), 0.1);
    let second = buffer.take();
    assert!(second.starts_with(&format!("\x1b[?25l\r\x1b[{rows}A")), "{second:?}");
    assert!(!second.contains("\x1b[3"), "no colours: {second:?}");
    // At half the width, the terminal has wrapped the lines.
    let lines = render(&output.history, 80, 24, 0.1);
    let rows: usize = lines.iter().map(|line| line.chars().count().div_ceil(40).max(1)).sum();
    *size.lock().unwrap() = Some(TerminalSize { width: 40, height: 24 });
    output.refresh(0.3);
    assert!(buffer.take().starts_with(&format!("\x1b[?25l\r\x1b[{rows}A")));
    output.hide_dashboard();
    let hidden = buffer.take();
    let rows = render(&output.history, 40, 24, 0.3).len();
    assert_eq!(hidden.matches("\x1b[1A\x1b[2K").count(), rows);
    // A terminal that erases its whole screen at once keeps a copy of it in the scrollback.
    assert!(!hidden.contains("\x1b[J") && !hidden.contains("\x1b[2J"), "{hidden:?}");
    output.hide_dashboard();
    assert_eq!(buffer.take(), "");
}

#[test]
fn notes_are_printed_above_the_dashboard_and_the_summary_below() {
    let (mut output, buffer, _) = output(OutputMode::Dashboard { colour: true });
    output.on_event(&begin(), 0.0);
    output.on_event(&step(600), 1.0);
    buffer.take();
    output.on_event(&Event::Note("the disk is full".to_owned()), 1.01);
    let text = buffer.take();
    let note = text.find("the disk is full").unwrap();
    assert!(text.rfind("\x1b[2K").unwrap() < note && note < text.find("step 600/600").unwrap());
    assert!(text.contains("\x1b[36m"), "{text:?}");
    output.on_event(&Event::Sample("To be\nor not".to_owned()), 1.015);
    assert_eq!(buffer.take(), "");
    output.on_event(&end(), 1.02);
    let text = strip_str(&buffer.take()).to_string();
    assert!(text.ends_with(
        "sample:\nTo be\nor not\n\
         done: 600 steps in 58 s, loss 1.5000, val 1.6000, 121k tok/s,\n\
         38.2 GFLOP/s (50% of GEMM peak)\n\
         run folder: runs/1\n\
         generate text: regatta generate runs/1\n"
    ));
    output.refresh(9.0);
    assert_eq!(buffer.take(), "");
}

#[test]
fn the_header_has_a_micro_batch_size_that_was_chosen() {
    let Event::Start(mut about) = begin() else { panic!() };
    (about.micro_batch, about.micro_batch_auto) = (32, true);
    let header = log::header_lines(&about);
    assert!(header.contains("1.20M tokens   micro-batch 32 (auto)\n"), "{header}");
}

#[test]
fn log_has_a_line_per_interval_and_one_per_validation_with_its_step() {
    let (mut output, buffer, _) = output(OutputMode::Log);
    output.on_event(&begin(), 0.0);
    for n in 1..=600 {
        output.on_event(&step(n), n as f64 / 10.0);
        if n == 300 {
            output.on_event(&Event::Validation { step: n, loss: 2.5 }, 25.0);
        }
    }
    output.on_event(&end(), 60.0);
    let expected = "\
tiny, 804k parameters   2 ranks, 4 threads per rank   f32 (avx512)   tinyshakespeare, 1.20M tokens
600 steps take about 58 s (estimate): half of the measured GEMM peak, 76.5 GFLOP/s
step 1/600  loss 3.9344  121k tok/s  38.2 GFLOP/s (50% of GEMM peak)  eta 1 min 0 s
step 100/600  loss 1.5000  121k tok/s  38.2 GFLOP/s (50% of GEMM peak)  eta 50 s
step 200/600  loss 0.9231  121k tok/s  38.2 GFLOP/s (50% of GEMM peak)  eta 40 s
step 300/600  loss 0.6667  121k tok/s  38.2 GFLOP/s (50% of GEMM peak)  eta 30 s
step 300/600  val 2.5000
step 400/600  loss 0.5217  121k tok/s  38.2 GFLOP/s (50% of GEMM peak)  eta 20 s
step 500/600  loss 0.4286  121k tok/s  38.2 GFLOP/s (50% of GEMM peak)  eta 10 s
step 600/600  loss 0.3636  121k tok/s  38.2 GFLOP/s (50% of GEMM peak)  eta 0 s
done: 600 steps in 58 s, loss 1.5000, val 1.6000, 121k tok/s, 38.2 GFLOP/s (50% of GEMM peak)
run folder: runs/1
generate text: regatta generate runs/1
";
    assert_eq!(buffer.take(), expected);
}

#[test]
fn json_mode_prints_only_events() {
    let (mut output, buffer, _) = output(OutputMode::Json);
    let events = [begin(), step(1), Event::Note("x".to_owned()), end()];
    events.iter().for_each(|event| output.on_event(event, 0.0));
    output.refresh(9.0);
    output.hide_dashboard();
    let text = buffer.take();
    let read: Vec<Event> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, events);
}

#[test]
fn long_steps_show_their_micro_batches_on_the_terminal_and_every_ten_seconds_in_a_log() {
    let progress = |done| Event::MicroBatch { step: 1, done, micro_batches: 480 };
    let mut history = RunHistory::default();
    history.on_event(&begin(), 0.0);
    let bar = |history: &RunHistory| render(history, 80, 24, 2.0)[2].clone();
    assert!(
        bar(&history).ends_with("  step 0/600  0%  about 58 s (estimate)"),
        "{}",
        bar(&history)
    );
    history.on_event(&progress(12), 2.0);
    assert!(bar(&history).contains("  step 1/600  micro-batch 12/480  "), "{}", bar(&history));
    history.on_event(&Event::MicroBatch { step: 1, done: 0, micro_batches: 1 }, 2.0);
    let shown = render(&history, 80, 24, 7.9)[2].clone();
    assert!(shown.contains("  step 1/600  running for 7 s  "), "{shown}");
    history.on_event(&step(1), 30.0);
    assert!(bar(&history).contains("step 1/600  0%  eta "), "{}", bar(&history));

    let (mut output, buffer, _) = output(OutputMode::Log);
    output.on_event(&begin(), 0.0);
    buffer.take();
    for second in 1..=29 {
        output.on_event(&progress(second), second as f64);
    }
    assert_eq!(buffer.take(), "step 1/600  micro-batch 10/480\nstep 1/600  micro-batch 20/480\n");
    output.on_event(&progress(20), 50.0);
    assert_eq!(buffer.take(), "", "no progress");
}

#[test]
fn the_summary_of_a_resumed_run_counts_its_own_steps() {
    let Event::End(whole) = end() else { panic!() };
    let resumed = Summary { start_step: 300, seconds: 15.9, ..*whole };
    assert!(summary(&resumed).starts_with("done: 300 steps (301 to 600) in 15 s, loss 1.5000"));
}

fn summary(summary: &Summary) -> String {
    let Event::Start(about) = begin() else { panic!() };
    strip_str(&log::summary(summary, &about, 200)).to_string()
}

#[test]
fn the_summary_names_the_time_stopped_and_the_command_that_resumes() {
    let Event::End(whole) = end() else { panic!() };
    let reason = EndReason::Interrupted;
    let stopped = Summary { reason, stopped_seconds: 22.0, step: 136, seconds: 31.0, ..*whole };
    let unsaved = summary(&stopped);
    let expected = "interrupted; no checkpoint saved: 136 steps in 31 s (stopped for 22 s), loss";
    assert!(unsaved.starts_with(expected), "{unsaved}");
    let saved = Summary { checkpoint: Some(136), ..stopped };
    let resume = "run folder: runs/1\nresume: regatta train --resume runs/1 -n 2\n";
    assert!(summary(&saved).ends_with(resume), "{}", summary(&saved));
    let none = Summary { checkpoint: None, ..saved };
    assert!(summary(&none).ends_with("run folder: runs/1\n"), "nothing to resume from");
}

#[test]
fn stopped_dashboard_is_not_drawn_until_it_is_continued() {
    let (mut output, buffer, size) = output(OutputMode::Dashboard { colour: false });
    output.on_event(&begin(), 0.0);
    output.on_event(&step(1), 1.0);
    buffer.take();
    output.stop_drawing(1.1);
    assert_eq!(buffer.take(), "\r\x1b[K", "the ^Z that the terminal has echoed");
    output.on_event(&step(2), 2.0);
    output.refresh(9.0);
    output.hide_dashboard();
    assert_eq!(buffer.take(), "");
    output.on_event(&Event::Note("SIGTERM".to_owned()), 9.0);
    assert_eq!(buffer.take(), "note: SIGTERM\n");
    output.resume_drawing(30.0);
    let drawn = buffer.take();
    assert!(drawn.starts_with("\x1b[?25l") && drawn.contains("step 2/600"), "{drawn:?}");
    assert!(!drawn.contains("\x1b[1A") && !drawn.contains("23A"), "below the shell: {drawn:?}");
    // `bg` continues the job in the background.
    *size.lock().unwrap() = None;
    output.on_event(&step(3), 31.0);
    output.hide_dashboard();
    assert_eq!(buffer.take(), "");
    *size.lock().unwrap() = Some(DEFAULT_SIZE);
    output.on_event(&step(4), 32.0);
    let drawn = buffer.take();
    assert!(drawn.contains("step 4/600") && !drawn.contains("23A"), "{drawn:?}");
}

#[test]
fn a_signal_is_shown_within_the_dashboard_until_the_end() {
    let mut history = history(3);
    history.signal_note = Some("SIGINT: finishing step 4".to_owned());
    let last = |history: &RunHistory| render(history, 80, 24, 1.0).pop().unwrap();
    assert_eq!(last(&history), "SIGINT: finishing step 4");
    history.on_event(&end(), 2.0);
    assert!(last(&history).contains("train  o val"));
}

#[test]
fn the_plot_uses_the_height_of_the_terminal() {
    for height in [24, 40, 60] {
        assert_eq!(render(&history(300), 80, height, 30.0).len(), height - 1);
    }
}

/// The step at which the recorded run is shown.
const SHOWN_STEP: u64 = 600;

/// `run.jsonl` has events of `regatta train --json`. After a change of the dashboard, update the drawing with
/// `REGATTA_BLESS=1 cargo test -p regatta screenshot`.
#[test]
fn the_screenshot_in_the_documentation_shows_the_current_dashboard() {
    let (mut history, mut start, mut now) = (RunHistory::default(), None, 0.0);
    for line in include_str!("run.jsonl").lines() {
        let event: Event = serde_json::from_str(line).unwrap();
        if let Event::Step(step) = &event {
            now = step.time - *start.get_or_insert(step.time);
        }
        history.on_event(&event, now);
        if history.done() >= SHOWN_STEP {
            break;
        }
    }
    let size = TerminalSize { width: 101, height: 31 };
    let lines = dashboard::render(&history, size, now);
    let drawn = screenshot::svg(&lines, size.width - 1, "regatta train: the live display");
    roxmltree::Document::parse(&drawn).unwrap();
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/display.svg");
    if std::env::var_os("REGATTA_BLESS").is_some() {
        std::fs::write(&file, &drawn).unwrap();
    }
    let there = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(there == drawn, "docs/display.svg is out of date; REGATTA_BLESS=1 updates it");
}
