// Builds the same pages as one script and one style sheet, for a report that is opened from disk (etude/studio/report.py).
import { defineConfig } from 'vite';

export default defineConfig({
  root: import.meta.dirname,
  base: './',
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  define: { 'import.meta.env.REPORT': 'true' },
  build: {
    outDir: '../etude/studio/report',
    emptyOutDir: true,
    target: 'es2022',
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: false,
    rollupOptions: {
      input: 'src/main.tsx',
      output: { codeSplitting: false, entryFileNames: 'report.js', assetFileNames: 'report[extname]' },
    },
  },
} as unknown as Parameters<typeof defineConfig>[0]);
