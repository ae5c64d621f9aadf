// Runs named scenarios against the appliance at argv[2] and prints, as one JSON object, what each returned.

export async function run(scenarios) {
  const said = {};
  for (const [name, scenario] of Object.entries(scenarios)) {
    try {
      said[name] = await scenario();
    } catch (error) {
      said[name] = { error: error.constructor.name, message: error.message };
    }
  }
  process.stdout.write(JSON.stringify(said));
}

export async function all(iterable) {
  const found = [];
  for await (const one of iterable) found.push(one);
  return found;
}

export const url = process.argv[2];
