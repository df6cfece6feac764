// Judges a sentence by an exported detector: `?model=NAME` names its folder in models/ (detector without it).
import { AutoModelForTokenClassification, AutoTokenizer, env } from "@huggingface/transformers";

env.allowLocalModels = true;
env.allowRemoteModels = false;
env.localModelPath = "models/";
env.backends.onnx.wasm.wasmPaths = new URL("node_modules/onnxruntime-web/dist/", location.href).href;
env.backends.onnx.wasm.numThreads = 1; // more need headers that a plain file server does not send

const find = (id) => document.getElementById(id);
const name = new URLSearchParams(location.search).get("model") ?? "detector";

/** The tokens of a sentence, each with the probability that it was replaced. */
async function judge(tokenizer, model, sentence) {
  const inputs = await tokenizer(sentence, { truncation: true });
  const { logits } = await model(inputs); // (1, tokens, 2): original, replaced
  const labels = logits.tolist()[0];
  return inputs.input_ids
    .tolist()[0]
    .map((id, place) => ({ word: tokenizer.decode([id]), share: 1 / (1 + Math.exp(labels[place][0] - labels[place][1])) }))
    .slice(1, -1); // without [CLS] and [SEP]
}

/** Shows tokens, the redder the more they are suspected, compared with the average of the sentence. */
function show(tokens) {
  const average = tokens.reduce((sum, token) => sum + token.share, 0) / tokens.length;
  find("tokens").replaceChildren(
    ...tokens.map(({ word, share }) => {
      const times = share / average;
      const element = document.createElement("span");
      element.textContent = word.replace(/^##/, "");
      element.dataset.share = share;
      element.style.background = `rgb(220 40 40 / ${Math.min(Math.max((times - 1) / 4, 0), 0.8)})`;
      const label = document.createElement("small");
      label.textContent = `x ${times.toFixed(1)}`;
      element.append(label);
      return element;
    }),
  );
  find("status").textContent = `x 2 is twice the average probability of "replaced", which is ${average.toFixed(2)}.`;
}

try {
  const tokenizer = await AutoTokenizer.from_pretrained(name);
  const model = await AutoModelForTokenClassification.from_pretrained(name, { dtype: "q8", device: "wasm" });
  const run = async () => {
    const tokens = await judge(tokenizer, model, find("sentence").value);
    tokens.length ? show(tokens) : (find("status").textContent = "Type a word first.");
  };
  document.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    run().catch((error) => (find("status").textContent = `This sentence cannot be judged: ${error.message}`));
  });
  find("judge").disabled = false;
  await run();
} catch (error) {
  find("status").textContent = `The model ${name} cannot be loaded: ${error.message}`;
}
