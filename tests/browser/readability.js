// Returns the luminance of the page background, and the texts with too little contrast by WCAG.
() => {
  // Colours come as `rgb(1, 2, 3)`, with or without an alpha, or as `color(srgb 0.1 0.2 0.3)`.
  const parsed = (text) => {
    const [r, g, b, alpha = 1] = text.match(/[\d.]+/g).map(Number);
    const scale = text.startsWith("color(") ? 1 : 255;
    return { rgb: [r, g, b].map((each) => each / scale), alpha };
  };
  const linear = (each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const over = ({ rgb, alpha }, below) =>
    rgb.map((each, at) => each * alpha + below[at] * (1 - alpha));
  const background = (element) => {
    if (!element) return [1, 1, 1];
    const own = parsed(getComputedStyle(element).backgroundColor);
    return own.alpha === 1 ? own.rgb : over(own, background(element.parentElement));
  };
  const ownText = (element) =>
    [...element.childNodes]
      .filter((each) => each.nodeType === Node.TEXT_NODE)
      .map((each) => each.data.trim())
      .join(" ");
  const contrast = (style, behind) => {
    const pair = [luminance(over(parsed(style.color), behind)), luminance(behind)];
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  };
  const needed = (style) => {
    const size = parseFloat(style.fontSize);
    return size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 600) ? 3 : 4.5;
  };

  const faint = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const text = ownText(element);
    if (!text || !element.checkVisibility() || element.closest("option, .visually-hidden")) continue;
    const style = getComputedStyle(element);
    const found = contrast(style, background(element));
    if (found < needed(style)) faint.add(`${text}: ${found.toFixed(2)}`);
  }
  return { faint: [...faint], luminance: luminance(background(document.body)) };
}
