// Thumbs and stars under the agent's answers to the user.
import { createActionButton } from "/components/messages/action-buttons/simple-action-buttons.js";
import { callJsonApi } from "/js/api.js";

const MARK = "rl-pipeline-rating";
const OPINIONS = [
  ["thumb_up", "Good answer", { kind: "thumbs_up" }],
  ["thumb_down", "Bad answer", { kind: "thumbs_down" }],
  ...[1, 2, 3, 4, 5].map((rating) => [
    `counter_${rating}`,
    rating === 1 ? "1 star" : `${rating} stars`,
    { kind: "stars", rating },
  ]),
];

export default async function addRatings(context) {
  for (const { args, result } of context?.results ?? []) {
    if (args?.type !== "response" || !result?.element) continue;
    for (const bar of result.element.querySelectorAll(".step-action-buttons")) {
      // Agent Zero empties a bar when it draws it again: what counts is whether the buttons are there.
      if (bar.querySelector(`.${MARK}`)) continue;
      for (const [icon, title, opinion] of OPINIONS) {
        const button = createActionButton(icon, title, () => rate(opinion, args.id, isLast(bar)));
        button.classList.add(MARK);
        bar.appendChild(button);
      }
    }
  }
}

// Versions whose log and history share no ids know the trajectory of the last answer only.
function isLast(bar) {
  return bar.contains([...document.querySelectorAll(`.${MARK}`)].at(-1));
}

async function rate(opinion, messageId, isLastAnswer) {
  const answer = await callJsonApi("plugins/rl_pipeline/feedback", {
    ...opinion,
    context: globalThis.getContext?.(),
    message_id: messageId,
    is_last: isLastAnswer,
  });
  if (!answer.ok) throw new Error(answer.error);
}
