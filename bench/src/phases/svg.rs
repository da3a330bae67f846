//! Depth and tokens per second over time, a strip for each arm.

use std::fmt::Write as _;

use super::run::Run;
use super::summary::Measured;
use super::tables::phase_name;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 150.0;
const TOP: f64 = 24.0;
/// Height of an arm's strip, and of the space between two strips.
const STRIP: f64 = 64.0;
const SPACE: f64 = 22.0;
/// Parts of a run with a point each in the line of tokens per second.
const PARTS: usize = 150;

/// Draws a repetition's arms below each other, all on one axis of time.
pub fn draw(measured: &Measured, repetition: usize) -> String {
    let arms: Vec<usize> = shown(measured);
    let runs = &measured.runs[repetition];
    let longest = |value: fn(&Run) -> f64| {
        let values = arms.iter().map(|at| value(&runs[*at]));
        values.fold(1e-9, f64::max)
    };
    let seconds = longest(Run::seconds);
    let fastest = longest(|run| rates(run).into_iter().fold(0.0, f64::max));
    let deepest = longest(|run| {
        let depths = run.steps.iter().map(|step| f64::from(step.depth));
        depths.fold(1.0, f64::max)
    });
    let height = TOP + arms.len() as f64 * (STRIP + SPACE) + 20.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"4\" y=\"14\">{}: <tspan fill=\"#1f5fbf\">depth (0 to {deepest})</tspan>, \
         <tspan fill=\"#c06a10\">tokens/s (0 to {fastest:.0})</tspan>, over {seconds:.0} s</text>\n",
        measured.list.name
    );
    let x = |at: f64| LEFT + at / seconds * (WIDTH - LEFT - 8.0);
    for (place, at) in arms.iter().enumerate() {
        let top = TOP + place as f64 * (STRIP + SPACE);
        let run = &runs[*at];
        strip(&mut svg, measured, run, top, &x);
        let _ = writeln!(
            svg,
            "<text x=\"4\" y=\"{}\">{}</text>\n<text x=\"4\" y=\"{}\" fill=\"#666\">{:.1} s</text>",
            top + 24.0,
            measured.arms[*at],
            top + 40.0,
            run.seconds()
        );
        let y = |part: f64| top + STRIP * (1.0 - part);
        line(&mut svg, "#c06a10", rate_points(run, fastest), &x, &y);
        line(&mut svg, "#1f5fbf", depth_points(run, deepest), &x, &y);
    }
    svg.push_str("</svg>\n");
    svg
}

/// The arms that are drawn: without speculation, the best fixed depth, and all policies.
fn shown(measured: &Measured) -> Vec<usize> {
    let best = measured.best_fixed();
    let arms = measured.arms.iter().enumerate();
    arms.filter(|(at, arm)| *at == 0 || Some(*at) == best || arm.adapts())
        .map(|(at, _)| at)
        .collect()
}

/// Draws the frame, and the beginnings of phases.
fn strip(svg: &mut String, measured: &Measured, run: &Run, top: f64, x: &impl Fn(f64) -> f64) {
    let right = x(run.seconds());
    let _ = writeln!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{:.1}\" height=\"{STRIP}\" fill=\"none\" \
         stroke=\"#ccc\"/>",
        right - LEFT
    );
    for (phase, begin) in run.begins.iter().enumerate() {
        let at = x(*begin);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {top}v{STRIP}\" stroke=\"#ddd\"><title>{}</title></path>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"8\" fill=\"#888\">{}</text>",
            phase_name(measured, phase),
            at + 1.0,
            top + STRIP + 9.0,
            phase + 1
        );
    }
}

/// Draws a line through points of seconds and parts of the height.
fn line(
    svg: &mut String,
    colour: &str,
    points: Vec<(f64, f64)>,
    x: &impl Fn(f64) -> f64,
    y: &impl Fn(f64) -> f64,
) {
    let points = points.into_iter();
    let points: Vec<String> = points
        .map(|(at, part)| format!("{:.1},{:.1}", x(at), y(part)))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline fill=\"none\" stroke=\"{colour}\" points=\"{}\"/>",
        points.join(" ")
    );
}

/// Points of the line of depths: only its corners, so a depth that stays is one line.
fn depth_points(run: &Run, deepest: f64) -> Vec<(f64, f64)> {
    let part = |depth: u32| f64::from(depth) / deepest;
    let mut points: Vec<(f64, f64)> = Vec::new();
    for same in run.steps.chunk_by(|one, next| one.depth == next.depth) {
        let (first, last) = (&same[0], &same[same.len() - 1]);
        points.push((first.at - first.took, part(first.depth)));
        points.push((last.at, part(last.depth)));
    }
    points
}

fn rate_points(run: &Run, fastest: f64) -> Vec<(f64, f64)> {
    let part = run.seconds() / PARTS as f64;
    let rates = rates(run).into_iter().enumerate();
    rates
        .map(|(at, rate)| ((at as f64 + 0.5) * part, rate / fastest))
        .collect()
}

/// Tokens per second in equal parts of a run. A step's tokens count evenly over its time.
fn rates(run: &Run) -> Vec<f64> {
    let part = run.seconds() / PARTS as f64;
    let mut tokens = vec![0.0; PARTS];
    for step in &run.steps {
        let (from, to) = (step.at - step.took, step.at);
        let first = (from / part) as usize;
        for (at, sum) in tokens.iter_mut().enumerate().skip(first) {
            let begin = at as f64 * part;
            if begin >= to {
                break;
            }
            let within = to.min(begin + part) - from.max(begin);
            *sum += f64::from(step.tokens) * within.max(0.0) / step.took.max(1e-12);
        }
    }
    tokens.into_iter().map(|tokens| tokens / part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::run::Step;

    #[test]
    fn every_arm_has_a_strip_with_its_phases_and_two_lines() {
        let svg = draw(&crate::phases::summary::tests::measured(), 0);
        // The text has no lines of points: these are checked by the test below and by
        // `depth_points`.
        let text: Vec<&str> = svg.lines().filter(|line| !line.contains("<poly")).collect();
        expect_test::expect![[r##"
            <svg xmlns="http://www.w3.org/2000/svg" width="900" height="216" font-family="sans-serif" font-size="11">
            <rect width="100%" height="100%" fill="white"/>
            <text x="4" y="14">two: <tspan fill="#1f5fbf">depth (0 to 1)</tspan>, <tspan fill="#c06a10">tokens/s (0 to 8)</tspan>, over 12 s</text>
            <rect x="150" y="24" width="742.0" height="64" fill="none" stroke="#ccc"/>
            <path d="M150.0 24v64" stroke="#ddd"><title>1. mixed 1</title></path>
            <text x="151.0" y="97.0" font-size="8" fill="#888">1</text>
            <path d="M521.0 24v64" stroke="#ddd"><title>2. mixed 1</title></path>
            <text x="522.0" y="97.0" font-size="8" fill="#888">2</text>
            <text x="4" y="48">none</text>
            <text x="4" y="64" fill="#666">12.0 s</text>
            <rect x="150" y="110" width="618.3" height="64" fill="none" stroke="#ccc"/>
            <path d="M150.0 110v64" stroke="#ddd"><title>1. mixed 1</title></path>
            <text x="151.0" y="183.0" font-size="8" fill="#888">1</text>
            <path d="M397.3 110v64" stroke="#ddd"><title>2. mixed 1</title></path>
            <text x="398.3" y="183.0" font-size="8" fill="#888">2</text>
            <text x="4" y="134">mine</text>
            <text x="4" y="150" fill="#666">10.0 s</text>
            </svg>"##]].assert_eq(&text.join("\n"));
        assert_eq!(svg.matches("<polyline").count(), 4);
        // A depth that stays for two steps of three has only its corners.
        let run = &crate::phases::summary::tests::measured().runs[0][2];
        let corners = depth_points(run, 1.0);
        assert_eq!(corners.len(), 2 * (run.switches() + 1));
        assert_eq!(
            corners.last().map(|(at, part)| (at.round(), *part)),
            Some((10.0, 1.0))
        );
    }

    #[test]
    fn tokens_are_spread_over_their_step() {
        let step = |at: f64, took: f64, tokens: u32| Step {
            at,
            took,
            tokens,
            ..Step::default()
        };
        let run = Run {
            steps: vec![step(1.0, 1.0, 50), step(3.0, 2.0, 50)],
            ..Run::default()
        };
        let rates = rates(&run);
        assert!((rates[10] - 50.0).abs() < 1e-6 && (rates[120] - 25.0).abs() < 1e-6);
        let all: f64 = rates.iter().sum::<f64>() * run.seconds() / PARTS as f64;
        assert!((all - 100.0).abs() < 1e-6, "{all}");
    }
}
