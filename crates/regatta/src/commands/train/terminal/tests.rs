use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use regatta_train::metrics::{About, FLOPS_FORMULA, StepMetrics, StepSeconds, Summary};

use super::*;

/// What was written.
#[derive(Clone, Default)]
struct Paper(Rc<RefCell<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Paper {
    fn take(&self) -> String {
        String::from_utf8(self.0.take()).unwrap()
    }
}

fn begin() -> Event {
    Event::Begin(Box::new(About {
        model: "tiny".to_owned(),
        parameters: 804_096,
        ranks: 2,
        hosts: 1,
        threads: 4,
        precision: "f32".to_owned(),
        kernels: "avx512".to_owned(),
        data: "builtin".to_owned(),
        data_tokens: 1_203_000,
        steps: 600,
        log_every: 100,
        flops_formula: FLOPS_FORMULA.to_owned(),
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
        rate: 9.1e-4,
        gradient_norm: 0.52,
        tokens_per_second: 121_034.0,
        flops_per_second: 38.24e9,
        seconds,
        ..Default::default()
    }))
}

fn end() -> Event {
    Event::End(Box::new(Summary {
        step: 600,
        loss: 1.5,
        validation_loss: Some(1.6),
        seconds: 58.2,
        tokens_per_second: 121_034.0,
        flops_per_second: 38.24e9,
        folder: "runs/1".to_owned(),
        ..Default::default()
    }))
}

fn watch(until: u64) -> Watch {
    let mut watch = Watch::default();
    watch.hear(&begin(), 0.0);
    for n in 1..=until {
        watch.hear(&step(n), n as f64 / 10.0);
        if n % 100 == 0 {
            watch.hear(&Event::Validation { step: n, loss: 5.0 / (1.0 + n as f64 / 60.0) }, 0.0);
        }
    }
    watch
}

fn frame(watch: &Watch, width: usize, height: usize, now: f64) -> Vec<String> {
    let lines = face::frame(watch, Size { width, height }, now);
    lines.iter().map(|line| strip_str(line).to_string()).collect()
}

#[test]
fn the_display_shows_all_there_is() {
    let shown = frame(&watch(300), 80, 24, 30.0).join("\n");
    let expected = include_str!("frame-80x24.txt");
    assert_eq!(shown, expected.trim_end_matches('\n'), "\n{shown}");
}

#[test]
fn a_narrow_terminal_has_it_too() {
    let shown = frame(&watch(300), 40, 24, 30.0).join("\n");
    let expected = include_str!("frame-40x24.txt");
    assert_eq!(shown, expected.trim_end_matches('\n'), "\n{shown}");
}

#[test]
fn a_small_terminal_has_the_figures_and_the_curve() {
    let shown = frame(&watch(300), 40, 12, 30.0).join("\n");
    let expected = include_str!("frame-40x12.txt");
    assert_eq!(shown, expected.trim_end_matches('\n'), "\n{shown}");
}

/// Whatever the figures are, lines break at the same places.
#[test]
fn figures_with_more_digits_move_nothing() {
    let places = |scale: f64| {
        let mut watch = watch(99);
        for n in 100..150 {
            let Event::Step(mut step) = step(n) else { panic!() };
            step.tokens_per_second *= scale;
            step.flops_per_second *= scale;
            step.seconds.data *= scale;
            watch.hear(&Event::Step(step), n as f64 / 10.0);
        }
        let places = |line: String| ["gradient", "rate", "data"].map(|word| line.find(word));
        frame(&watch, 80, 24, 30.0).into_iter().map(places).collect::<Vec<_>>()
    };
    for scale in [0.01, 0.1, 3.3, 7.0] {
        assert_eq!(places(scale), places(1.0), "{scale}");
    }
}

#[test]
fn no_display_is_larger_than_its_terminal() {
    for until in [0, 1, 2, 300, 600] {
        let watch = watch(until);
        for width in [1, 20, 21, 39, 40, 41, 80, 200] {
            for height in [1, 2, 5, 9, 10, 12, 24, 60] {
                let lines = frame(&watch, width, height, 30.0);
                assert!(lines.len() < height.max(2), "{width}x{height}: {}", lines.len());
                let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
                assert!(widest < width.max(21), "{width}x{height}: {widest}");
            }
        }
    }
}

#[test]
fn foreign_names_cannot_steer_the_terminal() {
    let mut watch = watch(3);
    watch.about.model = "\x1b[2Jevil\u{202e}".to_owned();
    watch.about.folder = "a\nb".to_owned();
    assert!(
        frame(&watch, 80, 24, 1.0).iter().all(|line| !line.contains(['\x1b', '\n', '\u{202e}']))
    );
    assert!(!face::sample("x\x1b[31my").contains("\x1b[31m"));
}

/// A screen on paper, and how large it believes to be.
fn screen(form: Form) -> (Screen<Paper>, Paper, Arc<Mutex<Size>>) {
    let paper = Paper::default();
    let size = Arc::new(Mutex::new(Size { width: 80, height: 24 }));
    let now = size.clone();
    (Screen::new(form, paper.clone(), Box::new(move || *now.lock().unwrap())), paper, size)
}

#[test]
fn it_is_drawn_in_place_at_most_ten_times_a_second() {
    let (mut screen, paper, size) = screen(Form::Live { colour: false });
    screen.hear(&begin(), 0.0);
    let first = paper.take();
    let rows = first.matches("\r\n").count();
    assert!(first.starts_with("\x1b[?25l") && first.ends_with("\x1b[J\x1b[?25h"), "{first:?}");
    screen.hear(&step(1), 0.05);
    screen.tick(0.09);
    assert_eq!(paper.take(), "");
    screen.hear(&step(2), 0.1);
    let second = paper.take();
    assert!(second.starts_with(&format!("\x1b[?25l\r\x1b[{rows}A")), "{second:?}");
    assert!(!second.contains("\x1b[3"), "no colours: {second:?}");
    // Half as wide, the terminal has broken the lines that were wider.
    let rows: usize = frame(&screen.watch, 80, 24, 0.1)
        .iter()
        .map(|line| line.chars().count().div_ceil(40).max(1))
        .sum();
    *size.lock().unwrap() = Size { width: 40, height: 24 };
    screen.tick(0.3);
    assert!(paper.take().starts_with(&format!("\x1b[?25l\r\x1b[{rows}A")));
    screen.make_way();
    assert!(paper.take().ends_with("A\x1b[J"));
    screen.make_way();
    assert_eq!(paper.take(), "");
}

#[test]
fn notes_and_the_end_stay_on_the_screen() {
    let (mut screen, paper, _) = screen(Form::Live { colour: true });
    screen.hear(&begin(), 0.0);
    screen.hear(&step(600), 1.0);
    paper.take();
    screen.hear(&Event::Note("the disk is full".to_owned()), 1.01);
    let text = paper.take();
    let note = text.find("the disk is full").unwrap();
    assert!(text.find("\x1b[J").unwrap() < note && note < text.find("step 600/600").unwrap());
    assert!(text.contains("\x1b[36m"), "{text:?}");
    screen.hear(&Event::Sample("To be\nor not".to_owned()), 1.015);
    assert_eq!(paper.take(), "");
    screen.hear(&end(), 1.02);
    let text = strip_str(&paper.take()).to_string();
    assert!(text.ends_with(
        "what it writes now:\nTo be\nor not\n\
         done: 600 steps in 59 s, loss 1.5000, validation 1.6000, 121 k tokens/s,\n\
         38.2 GFLOP/s\n\
         run folder: runs/1\n"
    ));
    screen.tick(9.0);
    assert_eq!(paper.take(), "");
}

#[test]
fn a_log_has_a_line_now_and_then() {
    let (mut screen, paper, _) = screen(Form::Lines);
    screen.hear(&begin(), 0.0);
    for n in 1..=600 {
        screen.hear(&step(n), n as f64 / 10.0);
        if n == 250 {
            screen.hear(&Event::Validation { step: n, loss: 2.5 }, 25.0);
        }
    }
    screen.hear(&end(), 60.0);
    let expected = "\
tiny with 804 k parameters   2 ranks, 4 threads each   f32 (avx512)   builtin, 1.20 M tokens
step 1/600  loss 3.9344  121 k tokens/s  38.2 GFLOP/s  left 1 min 0 s
step 100/600  loss 1.5000  121 k tokens/s  38.2 GFLOP/s  left 50 s
step 200/600  loss 0.9231  121 k tokens/s  38.2 GFLOP/s  left 40 s
step 300/600  loss 0.6667  val 2.5000  121 k tokens/s  38.2 GFLOP/s  left 30 s
step 400/600  loss 0.5217  121 k tokens/s  38.2 GFLOP/s  left 20 s
step 500/600  loss 0.4286  121 k tokens/s  38.2 GFLOP/s  left 10 s
step 600/600  loss 0.3636  121 k tokens/s  38.2 GFLOP/s  left 0 s
done: 600 steps in 59 s, loss 1.5000, validation 1.6000, 121 k tokens/s, 38.2 GFLOP/s
run folder: runs/1
";
    assert_eq!(paper.take(), expected);
}

#[test]
fn json_is_events_and_nothing_else() {
    let (mut screen, paper, _) = screen(Form::Json);
    let events = [begin(), step(1), Event::Note("x".to_owned()), end()];
    events.iter().for_each(|event| screen.hear(event, 0.0));
    screen.tick(9.0);
    screen.make_way();
    let text = paper.take();
    let read: Vec<Event> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, events);
}
