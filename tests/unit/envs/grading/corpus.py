"""Replies with expected answers and the right verdict, by category; the grader's accuracy is measured on them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    category: str
    reply: str
    expected: str
    right: bool
    missed: bool = False  # the grader is known to get it wrong


# category -> expected answer -> (right answers, wrong answers); each is put into \boxed{}
ANSWERS: dict[str, dict[str, tuple[list[str], list[str]]]] = {
    "whole numbers": {
        "72": (["72", "72.0", "+72", "072", "72.", "\\$72", "$72$", "\\text{72}", "36+36", "{72}"], ["71", "-72", "7.2", "720", "27", "72.5", "72.0000001", "7 2", "72, 73"]),
        "-5": (["-5", "−5", "- 5", "-5.0", "(-5)", "-\\frac{10}{2}"], ["5", "--5", "-0.5"]),
        "0": (["0", "-0", "0.0", "5-5"], ["1", "0.1", "\\emptyset", "10^{-9}"]),
        "33": (["33", "\\textbf{33}", "33\\,"], ["33!", "3^3", "330"]),
    },
    "fractions": {
        r"\frac{1}{2}": ([r"\frac{1}{2}", r"\dfrac{1}{2}", r"\tfrac12", "1/2", "0.5", ".5", r"\frac{2}{4}", "½", r"\frac{-1}{-2}", "2^{-1}", r"\frac{1}{2}."], [r"\frac{1}{3}", r"-\frac{1}{2}", "2", "0.51", "12", r"\frac{2}{1}", "0.49999"]),
        r"-\frac{7}{4}": ([r"-\frac{7}{4}", r"\frac{-7}{4}", r"\frac{7}{-4}", "-7/4", "-1.75", r"-1\frac{3}{4}"], [r"\frac{7}{4}", r"-\frac{4}{7}", "-1.7"]),
        r"\frac{1}{3}": (["1/3", "0.333333", "0.33333333", "⅓", r"\frac{3}{9}"], ["0.333", "0.33", "3", "0.3", r"33.3\%"]),
        r"\frac{3}{56}": ([r"\frac{3}{56}", "3/56", r"\frac{6}{112}", r"\frac{3}{7\cdot 8}"], [r"\frac{3}{65}", r"\frac{56}{3}", "0.05"]),
    },
    "decimals and tolerance": {
        "3.14": (["3.14", "3.140", "3.14159", r"\pi", r"\frac{22}{7}"], ["3.1", "3", "3.15", "3.13", "3.146"]),
        "2.5": (["2.5", "2.50", r"\frac{5}{2}", "5/2"], ["2.54", "2.45", "2.6", "25", "2"]),
        "18.90": (["18.9", "18.90", "\\$18.90", "18.9 \\text{ dollars}"], ["18.8", "18.96", "19", "1890"]),
        "0.125": (["0.125", "1/8", ".125", "0.1250"], ["0.12", "0.13", "0.0125", "1.25"]),
        r"\sqrt{2}": (["1.41421356", "1.414214"], ["1.41", "1.414", "1.4142"]),
        "1000000": (["1000000", "1,000,000.00"], ["1000000.5", "1000000.0001", "999999"]),
    },
    "scientific notation": {
        "3.0 \\times 10^8": (["3e8", "300000000", "3 \\times 10^{8}", "3.0×10^8", "3 \\cdot 10^8", "3*10^8"], ["3e7", "3 \\times 10^9", "3", "3.1e8"]),
        "6.63 \\times 10^{-34}": (["6.63e-34", "6.626e-34", "6.63 \\times 10^{-34}", "6.63×10⁻³⁴"], ["0", "6.63e-33", "6.7e-34", "1e-34"]),
        "2.19e6": (["2190000", "2.19e6", "2.190e6", "2187000"], ["2.19e5", "2180000", "2.2e6"]),
    },
    "percentages": {
        r"10\%": ([r"10\%", "10%", "10", "0.1", "10 percent", "10.0\\%"], ["0.01", r"1\%", r"100\%", "1"]),
        "25": ([r"25\%", "25 %"], [r"0.25\%", "0.25", r"2.5\%"]),
        "0.1": ([r"10\%", "0.1"], [r"0.1\%", r"1\%", "10"]),
        r"33\frac{1}{3}\%": ([r"33\frac{1}{3}\%", r"\frac{100}{3}\%", r"\frac13"], [r"33\%", r"\frac{1}{4}"]),
    },
    "thousands separators": {
        "1234567": (["1,234,567", "1{,}234{,}567", "1\\,234\\,567", "1 234 567", "1234567", "1,\\!234,\\!567"], ["1,234,568", "1,234", "123,4567"]),
        "10,000": (["10000", "10,000", "10^4", "10{,}000"], ["1000", "10", "100000"]),
        r"\$32,348": (["32348", "\\$32,348", "$32,348"], ["32", "348", "32.348"]),
        "1,2,3": (["1,2,3", "3, 2, 1", r"\{1,2,3\}"], ["123", "1,2", "1,2,4"]),
    },
    "mixed numbers": {
        r"3\frac{1}{2}": ([r"3\frac{1}{2}", "3.5", "7/2", "3 1/2", "3½", r"3 \frac{1}{2}", r"\frac{7}{2}", "3 and 1/2"], [r"\frac{3}{2}", "3", "31/2", r"2\frac{1}{2}", r"3\frac{1}{3}"]),
        r"\frac{11}{4}": ([r"2\frac{3}{4}", "2 3/4", "2¾", "2.75"], [r"2\frac{1}{4}", "23/4", "2.7"]),
        r"-1\frac{1}{2}": (["-1.5", r"-\frac{3}{2}", r"-1\frac{1}{2}"], [r"-\frac{1}{2}", "1.5"]),
    },
    "units": {
        r"5 \text{ cm}": (["5", "5 cm", r"5\text{ cm}", r"5\,\mathrm{cm}", "5 centimeters", r"5~\text{centimetres}"], ["6 cm", "5 km", "5 m", "0.5"]),
        "12": (["12 apples", r"12\text{ hours}", "12 m", "\\$12", "12 dollars", r"12 \text{ square units}", "12 cm^2", r"12\text{ cm}^2"], ["12 thousand", "13 apples", "12x", "12 million"]),
        r"36^\circ": (["36", r"36^{\circ}", "36°", "36 degrees", r"36^\circ"], ["63", "360", r"\frac{36}{2}^\circ"]),
        r"10\text{ inches}": ([r"10", "10 in", r"10 \text{ inch}"], [r"10\text{ feet}", "11"]),
        "6:30 pm": (["6:30 pm", "6:30 PM", r"6:30 \text{ p.m.}"], ["6:30 am", "6:00 pm", "6"]),
        r"11\text{th grade}": (["11", "11th grade", r"11\text{th grade}"], ["12th grade", "10"]),
        "12 men": (["12", "12 men", "12 people"], ["13 men", "men"]),
        "30 minutes": (["30 min", "30min", r"30\text{ minutes}", "30"], ["30 hours", "30 s", "0.5"]),
        "5000000": (["5 million", "5,000,000"], ["5", "5 billion"]),
        r"2\sqrt{3}\text{ m}": ([r"2\sqrt{3}", r"\sqrt{12}\text{ m}", r"2\sqrt{3}\text{ meters}"], [r"3\sqrt{2}", r"2\sqrt{3}\text{ km}"]),
    },
    "words": {
        r"\text{Evelyn}": (["Evelyn", r"\text{Evelyn}", "evelyn", r"\textbf{Evelyn}", "EVELYN"], ["Evan", "Eve", "42", "Angela"]),
        "Yes": (["Yes", "yes", r"\text{Yes}", "Yes, it does", r"\text{yes.}"], ["No", "not yes", "1", "Maybe"]),
        "No": (["No", r"\text{No}"], ["Yes", "Non", "Nowhere"]),
        "no solution": (["No solution", r"\text{no solution}", "no  solution."], ["one solution", "solution", "0"]),
        r"\text{June 20}": (["June 20", r"\text{june 20}"], ["June 21", "July 20", "20"]),
        "east": (["East", "the east"], ["west", "e"]),
        r"\text{ellipse}": (["ellipse", "Ellipse", "an ellipse"], ["parabola", "circle"]),
        "True": (["True", "true"], ["False", "Untrue"]),
    },
    "choices": {
        "C": (["C", "(C)", r"\text{(C)}", r"\textbf{(C)}", "C.", "C) 12", "C: 12", "c", "(C) 12", "option C"], ["B", "(D)", "12", "A, C"]),
        r"\text{(B)}": (["B", "(B)", r"\mathrm{B}", r"\text{B}", "b"], ["A", r"\text{(A)}", "8"]),
        "(E)": (["E", r"\textbf{(E)}\ 25", "(E)"], ["(A)", "25"]),
    },
    "unicode": {
        r"2\sqrt{3}": (["2√3", "2√(3)", "√12", r"2\sqrt 3", "2*sqrt(3)"], ["√3", "3√2", "2√5"]),
        r"\frac{\pi}{2}": (["π/2", "0.5π", r"\frac12\pi", "pi/2"], ["2π", "π", "1.57"]),
        "x^2": (["x²", "x^2", "x^{2}", "x·x"], ["x³", "2x", "x"]),
        r"x \le 3": (["x ≤ 3", "x<=3", r"x\leq 3", r"3 \ge x"], ["x < 3", "x ≥ 3", "x = 3"]),
        "-4": (["−4", "–4", "－4"], ["4", "÷4"]),
        "12": (["３×４", "１２", "3·4", "24÷2"], ["3×5", "34"]),
        r"[0,\infty)": (["[0,∞)", r"[0, +\infty)"], ["(0,∞)", "[0,1)", "(-∞,0]"]),
        "10^{12}": (["10¹²", "10^12", "1000000000000"], ["10²¹", "10^{11}"]),
    },
    "roots and powers": {
        r"\frac{\sqrt{3}}{3}": ([r"\frac{1}{\sqrt{3}}", r"\sqrt{\frac13}", r"\frac{\sqrt 3}{3}", "3^{-1/2}"], [r"\sqrt{3}", r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt{2}}{3}"]),
        r"3\sqrt{13}": ([r"3\sqrt{13}", r"\sqrt{117}", r"\sqrt{13}\cdot 3"], [r"13\sqrt{3}", r"3\sqrt{31}", r"\sqrt{39}"]),
        r"\sqrt[3]{2}": ([r"\sqrt[3]{2}", "2^{1/3}", r"2^{\frac{1}{3}}", "∛2"], [r"\sqrt{2}", r"3\sqrt{2}"]),
        "1024": (["2^{10}", "4^5", "2^10", "32^2"], ["2^9", "2^{11}", "2^1 0"]),
        r"1+\sqrt{5}": ([r"\sqrt{5}+1", r"1+\sqrt{5}", r"2\cdot\frac{1+\sqrt5}{2}"], [r"1-\sqrt{5}", r"\sqrt{6}"]),
        "9^{99}": (["9^{99}", "3^{198}"], ["9^{98}", "9^{9}"]),
    },
    "pi, logarithms, trigonometry": {
        r"4\pi": ([r"4\pi", r"\pi\cdot 4", "4 pi", r"2\cdot 2\pi"], ["4", r"\pi^4", r"4\pi^2", "12.56"]),
        r"\ln 8": ([r"3\ln 2", r"\ln(8)", r"\log_e 8", r"\ln 16-\ln 2"], [r"\ln 6", r"\log 8", "8"]),
        "3": ([r"\log_2 8", r"\log_{2}{8}", r"\log 1000"], [r"\log_8 2", r"\ln 8"]),
        r"\frac{1}{2}": ([r"\sin 30^\circ", r"\cos\frac{\pi}{3}", r"\sin\left(\frac{\pi}{6}\right)"], [r"\cos 30^\circ", r"\sin 30"]),
        r"e^2": (["e^2", "e^{2}", r"e\cdot e", r"\exp(2)"], ["2e", "e", "7.4"]),
        r"\frac{\pi^2}{6}": ([r"\frac{\pi^2}{6}", r"\frac{1}{6}\pi^2"], [r"\frac{\pi}{6}", r"\frac{\pi^2}{3}"]),
    },
    "expressions": {
        "(x+1)^2": (["x^2+2x+1", "(1+x)^2", "(x+1)(x+1)"], ["x^2+1", "(x-1)^2", "x^2+2x"]),
        r"\frac{n(n+1)}{2}": (["n(n+1)/2", r"\frac{n^2+n}{2}", r"\frac12 n(n+1)", "0.5n^2+0.5n"], [r"\frac{n(n-1)}{2}", "n(n+1)", r"\frac{m(m+1)}{2}"]),
        "2xy": (["2xy", "2yx", "xy+yx", "2 x y"], ["2", "2ab", "2x", "xy"]),
        r"10^{-30}x": ([r"10^{-30}x", r"\frac{x}{10^{30}}"], ["0", r"2\cdot 10^{-30}x"]),
        "0": (["x-x", r"\ln 8-3\ln 2", r"\sin^2 x+\cos^2 x-1"], ["x", "x-y"]),
        "p - q": (["p-q", "-q+p"], ["q-p", "p+q", "p"]),
        r"\sin 2x": ([r"2\sin x\cos x", r"\sin(2x)"], [r"2\sin x", r"\sin x"]),
        r"\frac{x+2}{7}": ([r"\frac{x+2}{7}", "(x+2)/7", r"\frac{x}{7}+\frac27"], [r"\frac{x-2}{7}", r"\frac{7}{x+2}"]),
        "6 - 5i": (["6-5i", "-5i+6", r"6 - 5 \mathrm{i}"], ["6+5i", "5-6i", "6"]),
        "|x|": ([r"\sqrt{x^2}", "|x|"], ["x", "-x"]),
        "x^3+3x-6": (["x^3+3x-6", "3x - 6 + x^3"], ["x^3+3x+6", "x^3-3x-6"]),
    },
    "equations": {
        "x=5": (["x=5", "5", "x = 5.0", "x=10/2"], ["x=4", "y=5", "-5"]),
        "5": (["x=5", "a = 5", "2+3=5", "x = 10 - 5 = 5"], ["x=6", "5=x+1"]),
        "y=2x+3": (["y=2x+3", "y=3+2x", "2x+3", "2x+3=y", "y-2x-3=0", "2y=4x+6"], ["y=2x", "y=3x+2", "x=2y+3", "2y=4x+3"]),
        "x^2+y^2=25": (["x^2+y^2=25", "25=x^2+y^2", "x^2+y^2-25=0"], ["x^2+y^2=5", "25", "x^2-y^2=25"]),
        "f(x)=x^2": (["f(x)=x^2", "x^2"], ["f(x)=2x", "x^3"]),
        "1,-2": (["x=1,x=-2", "x=1 \\text{ or } x=-2", "-2, 1", "1 and -2"], ["1,2", "1", "-1,2"]),
    },
    "intervals": {
        "[2,5)": (["[2,5)", "[2, 5)", r"\left[2,5\right)", r"x\in[2,5)", r"2\le x<5"], ["(2,5)", "[2,5]", "(2,5]", "[2,6)", "2,5"]),
        r"(-\infty,1)\cup(2,\infty)": ([r"(-\infty,1)\cup(2,\infty)", r"(2,\infty)\cup(-\infty,1)", r"(-\infty, 1) ∪ (2, \infty)", r"x<1\text{ or }x>2"], [r"(-\infty,1]\cup[2,\infty)", r"(1,2)", r"(-\infty,1)"]),
        r"(5,\infty)": ([r"x>5", r"(5,+\infty)", "(5,∞)"], [r"x\ge 5", r"[5,\infty)", "x<5"]),
        r"[-\frac{1}{2},\frac12]": ([r"[-0.5,0.5]", r"[-1/2,1/2]", r"-\frac12\le x\le\frac12"], [r"(-0.5,0.5)", r"[0,\frac12]"]),
    },
    "inequalities": {
        "x>3": (["x>3", "3<x", r"(3,\infty)", "x-3>0"], ["x<3", r"x\ge3", "x>4", "3"]),
        r"1<x\le 4": ([r"1<x\le 4", r"1 < x \leq 4", "(1,4]", r"4\ge x>1"], ["1<x<4", r"1\le x\le4", "(1,4)"]),
        r"a\ne 0": ([r"a\neq 0", "a≠0", "a != 0"], ["a=0", "a>0"]),
        r"x<-2": (["x<-2", "-2>x", r"(-\infty,-2)"], ["x<2", "x>-2"]),
    },
    "sets": {
        r"\{1,2,3\}": ([r"\{1,2,3\}", r"\{3,1,2\}", "1,2,3", "{1, 2, 3}", r"\left\{1,2,3\right\}"], [r"\{1,2\}", r"\{1,2,4\}", "6", r"\{1,2,3,4\}"]),
        r"\{0\}": ([r"\{0\}", "0"], [r"\emptyset", r"\{1\}"]),
        r"\emptyset": ([r"\varnothing", r"\{\}", "∅", r"\emptyset"], ["0", r"\{0\}"]),
        r"\mathbb{R}": ([r"\mathbb{R}", r"(-\infty,\infty)", "ℝ"], [r"\mathbb{Z}", r"(0,\infty)"]),
        r"\mathbb{R}\setminus\{3\}": ([r"x\ne 3", r"(-\infty,3)\cup(3,\infty)"], [r"x\ne 4", r"\mathbb{R}", r"\{3\}"]),
        r"\pm 3": ([r"3,-3", r"\pm3", r"\{-3,3\}", r"x=\pm 3"], ["3", "-3", r"\pm 9"]),
        r"1\pm\sqrt{2}": ([r"1+\sqrt2,1-\sqrt2", r"1\pm\sqrt{2}", r"1-\sqrt{2} \text{ and } 1+\sqrt{2}"], [r"1+\sqrt{2}", r"2\pm\sqrt{1}"]),
        r"\frac13,\frac12": (["0.5, 1/3", r"\frac{1}{2},\frac{1}{3}"], [r"\frac13", r"\frac13,\frac14"]),
    },
    "tuples": {
        "(1,2)": (["(1,2)", "(1, 2)", r"\left(1,2\right)", "(1.0,2.0)", r"\begin{pmatrix}1\\2\end{pmatrix}", "1,2"], ["(2,1)", "(1,3)", "[1,2]", "(1,2,3)", "1"]),
        r"(3,\frac{\pi}{2})": ([r"\left(3,\frac{\pi}{2}\right)", "(3, π/2)", r"(3,0.5\pi)"], [r"(\frac{\pi}{2},3)", r"(3,\pi)", r"(-3,\frac{\pi}{2})"]),
        "(2,1)": (["(2,1)"], ["(1,2)", "2"]),
        r"(0,0,-\frac14)": (["(0,0,-0.25)", "(0, 0, -1/4)"], [r"(0,0,\frac14)", "(0,0)"]),
        "(a,b),(c,d)": (["(a,b),(c,d)"], ["(a,b)", "(b,a),(c,d)"]),
    },
    "matrices": {
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}": ([r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}", r"\begin{pmatrix}1.0&\frac{4}{2}\\3&4\end{pmatrix}"], [r"\begin{pmatrix}1&3\\2&4\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1&2\\3&5\end{pmatrix}", "10"]),
        r"\begin{pmatrix} -2 \\ -14 \\ -7 \end{pmatrix}": ([r"\begin{pmatrix}-2\\-14\\-7\end{pmatrix}", r"\begin{bmatrix}-2\\-14\\-7\end{bmatrix}"], [r"\begin{pmatrix}2\\14\\7\end{pmatrix}", r"\begin{pmatrix}-14\\-2\\-7\end{pmatrix}"]),
    },
    "bases and ratios": {
        "2516_8": (["2516_8", "2516_{8}", "2516", r"2516_{\text{8}}"], ["2516_7", "2517_8", "1358"]),
        "1011_2": (["1011_2", "1011₂"], ["1010_2", "11"]),
        "1:2": (["1:2", "1/2", "2:4"], ["2:1", "1:3"]),
    },
}  # fmt: skip

# category -> (whole reply, expected answer, right?)
REPLIES: dict[str, list[tuple[str, str, bool]]] = {
    "finding the answer": [
        ("So it is $\\boxed{42}$.", "42", True),
        ("\\boxed{41} is tempting, but \\boxed{42} is right.", "42", True),
        ("\\boxed{42} is right; \\boxed{41} was tempting.", "42", False),
        ("\\fbox{42}", "42", True),
        ("\\boxed 42", "42", True),
        ("so $\\boxed5$ it is", "5", True),
        ("\\boxed{\\boxed{42}}", "42", True),
        ("\\boxed{\\frac{a}{\\sqrt{b}}}", r"\frac{a}{\sqrt{b}}", True),
        ("\\boxed{\\{1,2\\}}", "1,2", True),
        ("\\boxed {42}", "42", True),
        ("\\boxed{41} wait, \\boxed{42", "41", True),
        ("\\boxed{41} wait, \\boxed{42", "42", False),
        ("She sells 9 * 2 = 18 eggs.\n#### 18", "18", True),
        ("#### 1,800 \n", "1800", True),
        ("#### $18", "18", True),
        ("18 eggs.\n#### 17", "18", False),
        ("The answer is 42.", "42", True),
        ("The answer is 42. I hope it is correct.", "42", True),
        ("The final answer is $\\frac{1}{2}$.", "0.5", True),
        ("The answer is: \\(x=5\\)", "5", True),
        ("Answer: 42", "42", True),
        ("**Answer:** 42", "42", True),
        ("**Answer**: $42$ apples", "42", True),
        ("Final Answer: \\frac{3}{4}", "3/4", True),
        ("the answer is (C).", "C", True),
        ("The answer is approximately 3.14.", "3.14", True),
        ("The answer is 12 because 3 * 4 = 12 and 5 > 4.", "12", True),
        ("The answer is Evelyn.", r"\text{Evelyn}", True),
        ("The answer is 3.5 hours.", "3.5", True),
        ("The answer is $5$ or maybe 6.", "6", False),
        ("Answer:\n\n42", "42", True),
        ("We get\n$$x = \\frac{3}{4}$$", r"\frac{3}{4}", True),
        ("We get\n\\[ 3 + 4 = 7 \\]\nwhich is nice", "7", True),
        ("First $$x=1$$ and then $$x=2$$", "1", False),
        ("She has 72 apples left.", "72", True),
        ("There were 72, and she ate 2.", "72", False),
        ("47 + 38 = 85", "85", True),
        ("The result is $\\frac{3}{4}$.", "3/4", True),
        ("It costs $5 and then $7", "7", True),
        ("It costs $5 and then $7", "5", False),
        ("3/4", "0.75", True),
        ("so about 3/4 of them are left", "0.75", True),
        ("\\frac{3}{4}", "0.75", True),
        ("x = 5", "5", True),
        ("Yes", "Yes", True),
        ("$[1,2)$", "[1,2)", True),
        ("<think>perhaps \\boxed{1}</think>The answer is \\boxed{2}", "2", True),
        ("<think>perhaps \\boxed{2}</think>I do not know", "2", False),
        ("<think>a</think> 5 <think>\\boxed{7}</think> so 6", "6", True),
        ("I think it is 1,234 dollars", "1234", True),
        ("It drops to -7", "-7", True),
        ("10-3", "7", True),
    ],
    "no answer": [
        ("", "42", False),
        ("   \n", "42", False),
        ("I do not know how to solve this problem at all, sorry.", "42", False),
        ("\\boxed{}", "42", False),
        ("42 \\boxed{}", "42", False),
        ("\\boxed{?}", "42", False),
        ("\\boxed{", "42", False),
        ("....", "0", False),
        ("####", "42", False),
        ("<think>42</think>", "42", False),
        ("$$", "42", False),
        ("\\boxed{\\text{}}", "0", False),
    ],
    "adversarial": [
        (r"\boxed{9^{9^{9^{9}}}}", "7", False),
        (r"\boxed{9^{9^{9^{9}}}}", "x+1", False),
        (r"\boxed{99999999!}", "7", False),
        (r"\boxed{(((9!)!)!)!}", "7", False),
        (r"\boxed{10^{10^{10^{10}}}}", r"\sqrt{2}", False),
        (r"\boxed{\binom{10^9}{5\cdot 10^8}}", "7", False),
        (r"\boxed{" + "{" * 3000 + "7" + "}" * 3000 + "}", "8", False),
        (r"\boxed{" + "{" * 300 + "8" + "}" * 300 + "}", "7", False),
        (r"\boxed{" + r"\frac{1}{" * 60 + "2" + "}" * 60 + "}", "7", False),
        (r"\boxed{" + r"\sqrt{" * 150 + "2" + "}" * 150 + "}", "7", False),
        (r"\boxed{" + "(" * 300 + "8" + ")" * 300 + "}", "7", False),
        (r"\boxed{" + "9" * 1500 + "}", "7", False),
        (r"\boxed{" + "9" * 100_000 + "}", "7", False),
        ("9" * 100_000, "7", False),
        ("\\boxed{" * 20_000, "7", False),
        ("$" * 50_001, "7", False),
        ("\\(" * 30_000, "7", False),
        ("answer is " * 20_000, "7", False),
        ("1," * 50_000, "7", False),
        ("{" * 100_000 + "}" * 100_000, "7", False),
        (" " * 200_000, "7", False),
        (r"\boxed{(x+1)^{100000}}", "x^2+7", False),
        (r"\boxed{\sum_{n=1}^{10^{12}} n^n}", "7", False),
        (r"\boxed{\prod_{k=1}^{10^{9}} k}", "7", False),
        (r"\boxed{\int_0^{1} x^{x^{x}} dx}", "7", False),
        (r"\boxed{\operatorname{eye}(100000)}", "7", False),
        (r"\boxed{1e999999999}", "7", False),
        (r"\boxed{10^{-999999999}}", "7", False),
        (r"\boxed{" + "1+" * 900 + "1}", "7", False),
        (r"\boxed{" + ",".join(map(str, range(400))) + "}", "7", False),
        (r"\boxed{__import__('os').system('true')}", "7", False),
        (r"\boxed{\text{7 or 8}}", "7", False),
        (r"\boxed{7, 8}", "7", False),
        (r"\boxed{6 \text{ or } 7}", "7", False),
        (r"\boxed{\infty}", "7", False),
        (r"\boxed{\frac{1}{0}}", "7", False),
        (r"\boxed{\frac{0}{0}}", "0", False),
        (r"\boxed{x}", "7", False),
        (r"\boxed{7 \neq 7}", "7", False),
        (r"\boxed{\text{the expected answer}}", "7", False),
        ("\x00\x1b[31m\\boxed{7}\u202e", "7", True),
        ("\\boxed{7}" * 5000, "7", True),
        ("\\boxed{\\left(7\\right)}", "7", True),
        ("\\boxed{((((7))))}", "7", True),
    ],
}

# What the grader is known to get wrong, with the true verdict. They count as misses.
MISSES: list[tuple[str, str, str, bool]] = [
    ("expressions", r"\boxed{\cos(\pi n)}", "(-1)^n", True),
    ("expressions", r"\boxed{2\ln x}", r"\ln x^2", True),
    ("pi, logarithms, trigonometry", r"\boxed{90^\circ}", r"\frac{\pi}{2}", True),
    ("units", r"\boxed{100\text{ cm}}", r"1\text{ m}", True),
    ("units", r"\boxed{5 \text{ dollars and } 20 \text{ cents}}", "5.20", True),
    ("words", r"\boxed{twelve}", "12", True),
    ("words", r"\boxed{\text{there is none}}", "no solution", True),
    ("mixed numbers", r"\boxed{3\frac{5}{2}}", r"\frac{15}{2}", True),
    ("finding the answer", r"It is \boxed{3} and also \boxed{5}.", "3,5", True),
    ("finding the answer", "So we get 5, not 6.", "5", True),
    ("decimals and tolerance", r"\boxed{12.54}", "12.5", False),
    ("choices", r"\boxed{\text{the third one}}", "C", True),
]


def cases() -> list[Case]:
    """Every case; right and wrong ones of each category, then the known misses."""
    found = [
        Case(category, f"\\boxed{{{answer}}}", expected, right)
        for category, answers in ANSWERS.items()
        for expected, lists in answers.items()
        for right, some in zip((True, False), lists, strict=True)
        for answer in some
    ]
    found += [Case(category, *row) for category, rows in REPLIES.items() for row in rows]
    return found + [Case(*row, missed=True) for row in MISSES]
